"""generate(): steps, reasons, a full context, modes, errors."""

import re

import pytest
import torch

from rearview.errors import BadArgument
from rearview.generation import GenerationStep, generate
from rearview.generation.predictors import window_start
from rearview.models import BERT, BERTConfig
from tests.generation.models import VOCAB, small_gpt, small_t5


def test_each_step_has_a_token():
    model = small_gpt(context=8)
    generation = generate(model, [[1, 2], [3]], max_new_tokens=3, seed=2)
    steps = list(generation)
    assert [len(step.tokens) for step in steps] == [2, 2, 2]
    assert generation.tokens == [[step.tokens[n] for step in steps] for n in (0, 1)]
    assert [step.reasons for step in steps] == [(None, None), (None, None), ("length", "length")]
    assert list(generation) == []


def test_an_end_token_ends_its_sequence_alone():
    model = small_gpt(context=8)
    free = generate(model, [[1, 2], [3]], max_new_tokens=12, seed=2).finish().tokens
    end = next(token for token in free[0] if token not in free[1])
    generation = generate(model, [[1, 2], [3]], max_new_tokens=12, seed=2, stop_ids=[end])
    steps = list(generation)
    at = free[0].index(end)
    assert steps[at].tokens[0] == end
    assert steps[at].reasons == ("end token", None)
    assert [step.tokens[0] for step in steps[at + 1 :]] == [None] * (11 - at)
    assert generation.reasons == ["end token", "length"]
    assert generation.tokens[1] == free[1]


def test_a_caller_may_stop_a_sequence():
    generation = generate(small_gpt(), [[1], [2]], max_new_tokens=9)
    next(generation)
    generation.stop(1)
    step = next(generation)
    assert step.tokens[0] is not None
    assert step.tokens[1] is None
    assert step.reasons == (None, "stopped")
    assert [len(said) for said in generation.finish().tokens] == [9, 1]


def test_several_seeds_are_several_samples():
    model = small_gpt()
    three = generate(model, [[1, 2]] * 3, max_new_tokens=9, seed=[5, 6, 7]).finish().tokens
    assert three == [generate(model, [1, 2], max_new_tokens=9, seed=seed).finish().tokens[0] for seed in (5, 6, 7)]
    assert len({tuple(said) for said in three}) == 3


# A full context.


def test_a_full_context_stops():
    generation = generate(small_gpt(context=8), [[1, 2, 3], [1] * 8], max_new_tokens=20, when_full="stop").finish()
    # A model of 8 positions predicts the ninth token.
    assert [len(said) for said in generation.tokens] == [6, 1]
    assert generation.reasons == ["context full", "context full"]


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_full_context_slides_and_says_when(use_cache):
    options = {"max_new_tokens": 12, "use_cache": use_cache, "temperature": 0}
    slid = [step.slid for step in generate(small_gpt(context=8), [[1, 2, 3], [1] * 7], **options)]
    # The sequences grow from 3 to 14 and from 7 to 18 tokens; above 8 the oldest four are dropped.
    assert [n for n in range(12) if slid[n][0]] == [6, 10]
    assert [n for n in range(12) if slid[n][1]] == [2, 6, 10]


def test_tokens_that_slid_out_have_no_effect():
    """After sliding, the next token is that of a prompt of the remaining tokens."""
    model = small_gpt(context=8)
    long = list(range(10, 19))
    once = generate(model, long, max_new_tokens=1, temperature=0).finish().tokens[0]
    assert once == generate(model, long[4:], max_new_tokens=1, temperature=0).finish().tokens[0]


def test_the_window_is_at_most_the_context_and_at_least_half_of_it():
    for context in (1, 2, 3, 5, 8, 255):
        last = 0
        for count in range(1, 4 * context + 3):
            start = window_start(count, context=context)
            assert 1 <= count - start <= context
            assert count - start > context - max(1, context // 2) or start == 0
            assert start >= last
            last = start


# Modes.


def test_dropout_is_off_and_the_training_mode_is_restored():
    model = small_gpt(dropout=0.5).train()
    model.blocks[0].eval()
    first = generate(model, [1, 2], max_new_tokens=9, temperature=0).finish().tokens
    assert first == generate(model, [1, 2], max_new_tokens=9, temperature=0).finish().tokens
    assert model.training
    assert model.blocks[1].training
    assert not model.blocks[0].training


def test_gradients_are_enabled_between_steps():
    model = small_gpt()
    generation = generate(model, [1, 2], max_new_tokens=3)
    next(generation)
    assert not torch.is_inference_mode_enabled()
    model(torch.tensor([[1, 2]])).sum().backward()
    assert model.head.weight.grad is not None


def test_global_random_numbers_are_not_used():
    state = torch.get_rng_state()
    generate(small_gpt(), [1], max_new_tokens=5)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    generate(small_gpt_without_seed(), [1], max_new_tokens=5).finish()
    assert torch.equal(before, torch.get_rng_state())
    torch.set_rng_state(state)


def small_gpt_without_seed():
    state = torch.get_rng_state()
    model = small_gpt()
    torch.set_rng_state(state)
    return model


def test_a_step_of_one_sequence():
    assert GenerationStep((4,), (None,), (False,)).token == 4


# Errors.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"prompt": "to be"},
            "prompt: expected a list of token ids, or several such lists, got str. "
            "To generate from text, call complete().",
        ),
        ({"prompt": 3}, "prompt: expected a list of token ids, or several such lists, got int."),
        (
            {"prompt": []},
            "prompt: expected at least one token, got none. "
            "To start a new document, give the token that ends a document.",
        ),
        (
            {"prompt": [[1], []]},
            "prompt[1]: expected at least one token, got none. "
            "To start a new document, give the token that ends a document.",
        ),
        ({"prompt": [1, 99]}, "prompt: expected ids from 0 to 36, got 99."),
        ({"prompt": [[1], [-1]]}, "prompt[1]: expected ids from 0 to 36, got -1."),
        ({"prompt": [1.5]}, "prompt: expected ids from 0 to 36, got 1.5."),
        ({"max_new_tokens": -1}, "max_new_tokens: expected an integer of at least 0, got -1."),
        ({"when_full": "forget"}, 'when_full: expected "slide" or "stop", got \'forget\'.'),
        ({"seed": -1}, "seed: expected an integer from 0 to 2**63 - 1, got -1."),
        ({"seed": 1.5}, "seed: expected an integer from 0 to 2**63 - 1, got 1.5."),
        ({"seed": [1, 2, 3]}, "seed: expected one seed, or a list of 1 seeds, got 3 seeds."),
        (
            {"prompt": [1] * 17, "when_full": "stop"},
            "prompt: expected at most 16 tokens, the model's context, got 17. "
            'Pass only the last tokens, or drop the oldest with when_full="slide".',
        ),
    ],
)
def test_errors(change, message):
    with pytest.raises(BadArgument) as caught:
        generate(small_gpt(), **{"prompt": [1, 2], "max_new_tokens": 3} | change)
    assert str(caught.value) == message


def test_bert_is_refused():
    message = "model: expected a GPT or a T5, got BERT. BERT predicts masked tokens: call fill()."
    with pytest.raises(BadArgument, match=f"^{re.escape(message)}$"):
        generate(BERT(BERTConfig(vocab_size=9)), [1], max_new_tokens=1)  # pyright: ignore[reportArgumentType]


def test_nan_weights_are_reported():
    model = small_gpt()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    for temperature in (0, 1.0):
        with pytest.raises(BadArgument, match="expected finite logits"):
            generate(model, [1], max_new_tokens=2, temperature=temperature).finish()


def test_prompts_may_be_tensors():
    model = small_gpt()
    lists = generate(model, [[1, 2], [3, 4]], max_new_tokens=3).finish().tokens
    assert generate(model, torch.tensor([[1, 2], [3, 4]]), max_new_tokens=3).finish().tokens == lists
    assert generate(model, torch.tensor([1, 2]), max_new_tokens=3).finish().tokens == lists[:1]


def test_zero_new_tokens():
    generation = generate(small_gpt(), [1], max_new_tokens=0)
    assert list(generation) == []
    assert generation.reasons == ["length"]


def test_t5_stops_at_its_end_token():
    model = small_t5()
    free = generate(model, [1, 2, 3], max_new_tokens=20, seed=1).finish().tokens[0]
    ending = small_t5(end_id=free[3])
    found = generate(ending, [1, 2, 3], max_new_tokens=20, seed=1).finish()
    assert found.tokens[0] == free[: free.index(free[3]) + 1]
    assert found.reasons == ["end token"]
    assert model.config.vocab_size == VOCAB
