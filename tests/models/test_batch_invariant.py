"""A batch-invariant GPT: the bits of a position depend on its own sequence alone."""

import itertools
from typing import Any

import pytest
import torch

from rearview import Mask, causal, prefix, window
from rearview.attention.engines.native import library
from rearview.errors import BadArgument, Unsupported
from rearview.generation import LookupDraft, ModelDraft, generate
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from tests.native_kernel import needs_native

pytestmark = needs_native

MASKS: list[Mask | tuple[Mask, ...]] = [causal(), (causal() & window(7), causal() & (window(5) | prefix(2)))]


def new_model(*, layers: int = 2, width: int = 40, **options: Any) -> GPT:
    config = GPTConfig(vocab_size=61, context=64, layers=layers, heads=4, width=width, **options)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)
    model.batch_invariant = True
    return model


@pytest.fixture
def threads():
    """Sets the number of threads, and restores it after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("positions", "activation", "kv_heads", "mask"),
    list(itertools.product(["learned", "rotary"], ["gelu_tanh", "gelu"], [None, 2], MASKS)),
)
@torch.no_grad()
def test_logits_have_the_same_bits(threads, positions, activation, kv_heads, mask):
    model = new_model(positions=positions, activation=activation, kv_heads=kv_heads, mask=mask)
    tokens = torch.randint(61, (3, 40))
    whole = model(tokens)
    for count in (1, 2, 3):
        threads(count)
        assert torch.equal(model(tokens), whole)
    assert torch.equal(model(tokens[1:2]), whole[1:2])
    assert torch.equal(model(tokens[2:3, :23]), whole[2:3, :23])
    assert torch.equal(model(tokens, last_only=True), whole[:, -1:])
    cache = model.new_cache(2, 64)
    parts = [model(tokens[:2, :13], cache=cache)]
    parts += [model(tokens[:2, n : n + 1], cache=cache) for n in range(13, 20)]
    parts += [model(tokens[:2, 20:33], cache=cache)]
    assert torch.equal(torch.cat(parts, dim=1), whole[:2, :33])
    model.batch_invariant = False
    torch.testing.assert_close(model(tokens), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_are_the_same_in_every_way(temperature: float):
    # Equal rows of the embedding make ties, which rounding would decide.
    model = new_model(positions="rotary")
    with torch.no_grad():
        model.tokens.weight[31:] = model.tokens.weight[:30]
    prompts, options = [[1, 2, 3, 4, 5, 6, 7], [8], [9, 10]], {"max_new_tokens": 40, "temperature": temperature}
    together = generate(model, prompts, **options).finish().tokens
    assert together == generate(model, prompts, **options, use_cache=False).finish().tokens
    for prompt, tokens in zip(prompts, together, strict=True):
        assert generate(model, prompt, **options).finish().tokens[0] == tokens
        assert generate(model, prompt, **options, draft=LookupDraft(tokens=4)).finish().tokens[0] == tokens
        if temperature == 0:
            chain = ModelDraft(new_model(layers=1, width=16), tokens=4)
            assert generate(model, prompt, **options, draft=chain).finish().tokens[0] == tokens


def test_what_cannot_be_batch_invariant_is_refused(monkeypatch: pytest.MonkeyPatch):
    model = new_model()
    with pytest.raises(Unsupported, match=r"it has no gradients; use it within torch\.no_grad"):
        model(torch.tensor([[1, 2]]))
    with pytest.raises(BadArgument, match=r"^batch_invariant: expected True or False, got 1"):
        model.batch_invariant = 1  # type: ignore[assignment]
    half = GPT(GPTConfig(vocab_size=61, layers=1, heads=2, width=8)).bfloat16()
    with pytest.raises(Unsupported, match="computes float32 only, and the tensors are bfloat16"):
        half.batch_invariant = True
    assert not half.batch_invariant
    for other in (BERT(BERTConfig(vocab_size=61, layers=1, heads=2, width=8)), T5(T5Config(vocab_size=61, layers=1))):
        with pytest.raises(Unsupported, match=f"^batch_invariant of a {type(other).__name__}:\n"):
            other.batch_invariant = True
        other.batch_invariant = False
    monkeypatch.setattr(library, "MISSING", "its library is not in this installation")
    with pytest.raises(Unsupported, match="its library is not in this installation"):
        model.batch_invariant = True
