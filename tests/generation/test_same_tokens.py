"""The same tokens with and without the cache, alone and in a batch, greedy and drawn, before and after sliding."""

import pytest
import torch

from rearview import causal, prefix
from rearview.errors import Unsupported
from rearview.generation import generate
from rearview.models import GPT, GPTConfig
from tests.generation.models import MASKS, VOCAB, small_gpt, small_t5

PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [9], [11, 12, 13], [4, 4, 8, 30, 2]]
GREEDY, DRAWN = {"temperature": 0}, {"temperature": 1.3, "top_k": 20, "seed": 5}
WAYS = pytest.mark.parametrize("way", [GREEDY, DRAWN], ids=["greedy", "drawn"])


def tokens(model, prompt, *, max_new_tokens: int = 40, **options):
    return generate(model, prompt, max_new_tokens=max_new_tokens, **options).finish().tokens


def everyone_agrees(model, prompts, **options):
    alone = [tokens(model, prompt, use_cache=True, **options)[0] for prompt in prompts]
    again = [tokens(model, prompt, use_cache=False, **options)[0] for prompt in prompts]
    assert alone == again
    assert tokens(model, prompts, use_cache=True, **options) == alone
    assert tokens(model, prompts, use_cache=False, **options) == alone
    return alone


@WAYS
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.parametrize("mask", MASKS, ids=MASKS.keys())
def test_gpt(mask, positions, way):
    model = small_gpt(mask=MASKS[mask], positions=positions)
    found = everyone_agrees(model, PROMPTS, **way)
    # Worth something only if the model does not say one word for ever.
    assert sum(len(set(said)) for said in found) > 8


@WAYS
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_grouped_queries(positions, way):
    everyone_agrees(small_gpt(heads=4, kv_heads=2, positions=positions), PROMPTS, **way)


@pytest.mark.parametrize("context", [1, 2, 3, 7])
def test_contexts_of_any_size_slide(context):
    everyone_agrees(small_gpt(context=context), PROMPTS, max_new_tokens=12, **DRAWN)


def test_equal_prompts_are_read_once():
    model = small_gpt(context=12)
    prompts, seeds = [[1, 2, 3, 4, 5], [9], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5]], [5, 6, 7, 5]
    alone = [tokens(model, prompt, temperature=1.3, seed=seed)[0] for prompt, seed in zip(prompts, seeds, strict=True)]
    read = []
    hook = model.register_forward_pre_hook(lambda _, args: read.append(tuple(args[0].shape)))
    try:
        # They also slide together: where the seeds are equal, the texts stay equal.
        assert tokens(model, prompts, temperature=1.3, seed=seeds) == alone
    finally:
        hook.remove()
    assert alone[0] == alone[3] != alone[2]
    assert read[0] == (2, 4)


def test_sequences_that_end_early_leave_the_batch_without_a_trace():
    model = small_gpt(context=12)
    alone = [tokens(model, prompt, **DRAWN)[0] for prompt in PROMPTS]
    ends = alone[0][4]
    cut = [tokens(model, prompt, stop_ids=[ends], **DRAWN)[0] for prompt in PROMPTS]
    assert [said for said in cut if len(said) < 40], "somebody ends early"
    assert len({len(said) for said in cut}) > 2
    assert tokens(model, PROMPTS, stop_ids=[ends], **DRAWN) == cut
    for whole, part in zip(alone, cut, strict=True):
        assert part == whole[: len(part)]
        assert ends not in part[:-1]


def test_a_penalty_looks_at_the_sequence_alone():
    everyone_agrees(small_gpt(), PROMPTS, temperature=0, repetition_penalty=1.4)


@WAYS
def test_t5(way):
    model = small_t5()
    everyone_agrees(model, PROMPTS, max_new_tokens=20, **way)


def test_t5_sequences_that_end_early_leave_the_batch():
    model = small_t5()
    ends = tokens(model, PROMPTS[1], **DRAWN)[0][3]
    cut = [tokens(model, prompt, stop_ids=[ends], **DRAWN)[0] for prompt in PROMPTS]
    assert len({len(said) for said in cut}) > 1
    assert tokens(model, PROMPTS, stop_ids=[ends], **DRAWN) == cut


def test_a_mask_that_looks_ahead_is_generated_without_a_cache():
    model = small_gpt(mask=causal() | prefix(3))
    with pytest.raises(Unsupported) as error:
        generate(model, [1, 2], max_new_tokens=3, use_cache=True)
    assert str(error.value) == (
        "generation with a cache:\n"
        "  - the mask causal() | prefix(3) looks ahead, so every new token changes earlier keys and values\n"
        "Omit use_cache or pass use_cache=False, so that the model reads the whole sequence at every step."
    )
    assert tokens(model, [1, 2], **DRAWN) == tokens(model, [1, 2], use_cache=False, **DRAWN)


@torch.no_grad()
def test_the_definition():
    """Greedy tokens by their definition: the largest logit at every step; a full context drops its oldest half."""
    model = small_gpt(context=6)
    sequence = [1, 2, 3]
    for _ in range(15):
        window = sequence
        while len(window) > 6:
            window = window[3:]
        sequence.append(int(model(torch.tensor([window]))[0, -1].argmax()))
    assert tokens(model, [1, 2, 3], max_new_tokens=15, temperature=0)[0] == sequence[3:]


def test_bfloat16_gives_as_many_tokens():
    model = GPT(GPTConfig(vocab_size=VOCAB, context=8, layers=1, heads=2, width=8)).to(torch.bfloat16)
    assert len(tokens(model, [1], temperature=0.5)[0]) == 40
