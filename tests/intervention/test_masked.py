"""masked(): layers and heads that hear less, in Rearview's models and in those of transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rearview import MaskedSelfAttention, Unsupported, causal, dense, full, observe, padding, prefix, window
from rearview.errors import BadArgument
from rearview.intervention import masked
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config

TOKENS = torch.arange(11).unsqueeze(0)


def gpt(layers: int = 2) -> GPT:
    torch.manual_seed(0)
    return GPT(GPTConfig(vocab_size=31, context=16, layers=layers, heads=4, width=16)).eval()


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=31, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def logits(model: nn.Module, tokens: Tensor = TOKENS) -> Tensor:
    with torch.no_grad():
        out = model(tokens)
    return out if isinstance(out, Tensor) else out.logits


@pytest.mark.parametrize("build", [gpt, llama])
def test_a_narrower_mask_is_that_of_a_model_with_it(build):
    model = build()
    with masked(model, mask=window(1)):
        alone = logits(model)
    # A position that hears itself alone gives what it gives without the others: 2 layers hear nothing else either.
    for position in (0, 4, 10):
        changed = torch.randint(31, TOKENS.shape)
        changed[0, position] = TOKENS[0, position]
        with masked(model, mask=window(1)):
            assert torch.allclose(logits(model, changed)[0, position], alone[0, position], atol=1e-6)
    assert not torch.allclose(logits(model), alone)


def test_masks_of_a_gpt_are_those_of_its_config():
    model = gpt()
    narrow = GPT(GPTConfig(vocab_size=31, context=16, layers=2, heads=4, width=16, mask=causal() & window(3))).eval()
    narrow.load_state_dict(model.state_dict())
    with masked(model, mask=window(3)):
        assert torch.allclose(logits(model), logits(narrow), atol=1e-6)
    looking_ahead = GPT(GPTConfig(vocab_size=31, context=16, layers=2, heads=4, width=16, mask=full())).eval()
    looking_ahead.load_state_dict(model.state_dict())
    with masked(model, mask=full(), replace=True):
        assert torch.allclose(logits(model), logits(looking_ahead), atol=1e-6)


@pytest.mark.parametrize("build", [gpt, llama])
@pytest.mark.parametrize("replace", [False, True])
def test_a_head_that_is_switched_off_gives_zeros(build, replace):
    model = build()
    out = {}
    layer = dict(model.named_modules())["blocks.1.attention" if build is gpt else "model.layers.1.self_attn"]
    projection = layer.out if build is gpt else layer.o_proj
    hook = projection.register_forward_pre_hook(lambda module, args: out.update(heads=args[0]))
    with masked(model, layer=1, heads=[1, 2], mask=~full(), replace=replace):
        logits(model)
    hook.remove()
    per_head = out["heads"].unflatten(-1, (4, 4))
    assert (per_head[..., 1:3, :] == 0).all()
    assert (per_head[..., [0, 3], :] != 0).any()


def test_one_link_of_one_head():
    model = gpt(layers=1)
    heard = torch.ones(11, 11, dtype=torch.bool)
    heard[7, 3] = False
    with masked(model, layer=0, heads=2, mask=dense(heard)), observe(model) as seen:
        logits(model)
    with observe(model) as before:
        logits(model)
    assert seen.tile(0, 2)[7, 3] == 0
    others = torch.arange(11) != 7
    assert torch.allclose(seen.tile(0, 2)[others], before.tile(0, 2)[others], atol=1e-6)
    assert torch.allclose(seen.tile(0, 1), before.tile(0, 1), atol=1e-6)
    kept = before.tile(0, 2)[7].clone()
    kept[3] = 0
    assert torch.allclose(seen.tile(0, 2)[7], kept / kept.sum(), atol=1e-6)


@pytest.mark.parametrize("build", [gpt, llama])
def test_observe_sees_the_mask_inside_and_outside(build):
    model = build()
    with masked(model, mask=~prefix(1), layer=0), observe(model) as inside:
        logits(model)
    with observe(model) as outside, masked(model, mask=~prefix(1), layer=0):
        logits(model)
    for seen in (inside, outside):
        assert seen.tile(0, 0)[:, 0].sum() == 0
        assert seen.tile(1, 0)[0, 0] == pytest.approx(1)
    with observe(model) as after:
        logits(model)
    assert after.tile(0, 0)[0, 0] == pytest.approx(1)


@pytest.mark.parametrize("build", [gpt, llama])
def test_nothing_is_left_behind(build):
    model = build()
    before = logits(model)
    with pytest.raises(ZeroDivisionError), masked(model, mask=~full()), masked(model, layer=0, mask=window(2)):
        _ = 1 / 0
    assert torch.equal(logits(model), before)
    with masked(model, mask=window(1)):
        clone = copy.deepcopy(model)
    assert torch.allclose(logits(clone), before)
    assert not any("attend" in module.__dict__ for module in model.modules())


def test_nested_edits_are_joined():
    model = gpt()
    with masked(model, mask=window(4)), masked(model, layer=[0, 1], mask=~prefix(2)):
        both = logits(model)
    with masked(model, mask=window(4) & ~prefix(2)):
        assert torch.allclose(both, logits(model), atol=1e-6)


def test_batch_items_may_differ():
    model = gpt()
    real = torch.ones(11, 11, dtype=torch.bool) & ~torch.eye(11, dtype=torch.bool)
    with masked(model, mask=padding(real)):
        several = logits(model, TOKENS.expand(11, -1))
    for cut in (0, 5, 9):
        with masked(model, mask=padding(real[cut : cut + 1])):
            assert torch.allclose(logits(model)[0], several[cut], atol=1e-6)


def test_a_cached_step_is_masked_like_the_whole():
    model = gpt()
    with torch.no_grad(), masked(model, mask=window(3) | prefix(1), heads=[0, 2]):
        whole = model(TOKENS)
        cache = model.new_cache(1)
        steps = [model(TOKENS[:, :6], cache=cache), *(model(TOKENS[:, n : n + 1], cache=cache) for n in range(6, 11))]
    assert torch.allclose(whole, torch.cat(steps, 1), atol=1e-5)


def test_encoders_and_cross_attention():
    bert = BERT(BERTConfig(vocab_size=31, context=16, layers=1, heads=2, width=8)).eval()
    with masked(bert, mask=causal()):
        assert logits(bert).isfinite().all()
    t5 = T5(T5Config(vocab_size=31, layers=1, heads=2, width=8)).eval()
    with torch.no_grad():
        before = t5(TOKENS, TOKENS[:, :4])
        with masked(t5, layer="decoder.*", mask=~prefix(3)):
            after = t5(TOKENS, TOKENS[:, :4])
    assert not torch.allclose(before, after)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask": "causal"}, r"mask: expected a Mask such as ~prefix\(1\), got 'causal'"),
        ({"mask": full(), "replace": 1}, "replace: expected True or False, got 1"),
        ({"mask": full(), "heads": 4}, "heads: expected heads of blocks.0.attention, 0 to 3, got 4"),
        ({"mask": full(), "layer": 2}, "layers: expected attention layers of the model"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str):
    with pytest.raises(BadArgument, match=message), masked(gpt(), **options):
        pass


def test_a_model_without_attention_is_refused():
    with pytest.raises(Unsupported, match="Linear cannot be watched"), masked(nn.Linear(2, 2), mask=full()):
        pass


def test_a_layer_by_itself():
    layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 3, 8)
    with masked(layer, mask=window(1)):
        alone = layer(x)
    assert torch.allclose(alone[:, 2:], layer(x[:, 2:]), atol=1e-6)
