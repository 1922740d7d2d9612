"""Sampling: the definitions of its options, their edge cases, and the frequencies of sampled tokens."""

import math

import pytest
import torch

from rearview.errors import BadArgument
from rearview.generation import Sampling

LOGITS = torch.tensor([2.0, -1.0, 0.5, 3.0, 3.0, -4.0])


def kept(sampling: Sampling, logits: torch.Tensor = LOGITS, history: list[int] | None = None) -> list[int]:
    return (sampling.scores(logits, history or []) > -math.inf).nonzero().flatten().tolist()


def test_frequencies_match_the_probabilities():
    sampler = Sampling(temperature=0.7).start(seed=11)
    expected = (LOGITS.double() / 0.7).softmax(-1)
    draws = 20_000
    found = torch.bincount(torch.tensor([sampler.pick(LOGITS, []) for _ in range(draws)]), minlength=len(LOGITS))
    chi_square = ((found - draws * expected) ** 2 / (draws * expected)).sum()
    # Five degrees of freedom: the 99.9 % quantile.
    assert float(chi_square) < 20.5


def test_the_same_seed_draws_the_same_and_another_does_not():
    one, same, other = (Sampling().start(seed) for seed in (3, 3, 4))
    draws = [[sampler.pick(LOGITS, []) for _ in range(50)] for sampler in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]


def test_excluded_tokens_are_never_sampled():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, -900.0, 0.0, -math.inf])
    sampler = Sampling().start(seed=0)
    assert {sampler.pick(logits, []) for _ in range(200)} == {1, 4}


def test_greedy_takes_the_first_of_tied_tokens():
    assert Sampling(temperature=0).start(0).pick(LOGITS, []) == 3


@pytest.mark.parametrize("temperature", [1e-300, 1e-9])
def test_a_temperature_near_0_is_nearly_greedy(temperature):
    sampler = Sampling(temperature=temperature).start(0)
    assert {sampler.pick(LOGITS * 100, []) for _ in range(40)} == {3, 4}


@pytest.mark.parametrize(
    ("top_k", "expected"), [(1, [3, 4]), (2, [3, 4]), (3, [0, 3, 4]), (6, [0, 1, 2, 3, 4, 5]), (99, [0, 1, 2, 3, 4, 5])]
)
def test_top_k_keeps_ties(top_k, expected):
    assert kept(Sampling(top_k=top_k)) == expected


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [(1e-9, [0]), (0.5, [0]), (0.500001, [0, 1]), (0.75, [0, 1]), (0.8, [0, 1, 2]), (1.0, [0, 1, 2, 3])],
)
def test_top_p_keeps_the_fewest_tokens_that_reach_it(top_p, expected):
    assert kept(Sampling(top_p=top_p), torch.tensor([0.5, 0.25, 0.125, 0.125]).double().log()) == expected


def test_top_p_applies_after_top_k():
    # Of the two tokens that top-k keeps, the first has two thirds.
    logits = torch.tensor([0.4, 0.2, 0.2 - 1e-6, 0.2 + 1e-6]).double().log()
    assert kept(Sampling(top_k=2, top_p=0.6), logits) == [0]
    assert kept(Sampling(top_k=2, top_p=0.7), logits) == [0, 3]


def test_options_match_transformers():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(5)
    logits, history = 3 * torch.randn(50), [3, 7, 7, 12]
    processors = [
        transformers.RepetitionPenaltyLogitsProcessor(1.3),
        transformers.TemperatureLogitsWarper(0.8),
        transformers.TopKLogitsWarper(20),
        transformers.TopPLogitsWarper(0.8),
    ]
    theirs = logits[None]
    for process in processors:
        theirs = process(torch.tensor([history]), theirs)
    ours = Sampling(temperature=0.8, top_k=20, top_p=0.8, repetition_penalty=1.3).scores(logits, history)
    torch.testing.assert_close(ours.softmax(-1).float(), theirs[0].softmax(-1), rtol=1e-5, atol=1e-7)


def test_a_penalty_applies_to_greedy_and_leaves_the_logits_unchanged():
    logits = torch.tensor([1.0, 1.5, -1.0])
    sampling = Sampling(temperature=0, repetition_penalty=2.0)
    assert sampling.scores(logits, [1, 2]).tolist() == [1.0, 0.75, -2.0]
    assert sampling.start(0).pick(logits, [1]) == 0
    assert logits.tolist() == [1.0, 1.5, -1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1}, "temperature: expected a number of at least 0, got -1."),
        ({"temperature": math.nan}, "temperature: expected a number of at least 0, got nan."),
        ({"temperature": True}, "temperature: expected a number of at least 0, got True."),
        ({"top_k": 0}, "top_k: expected an integer of at least 1, got 0."),
        ({"top_p": 0.0}, "top_p: expected a number above 0 and at most 1, got 0.0."),
        ({"top_p": 1.5}, "top_p: expected a number above 0 and at most 1, got 1.5."),
        ({"repetition_penalty": 0}, "repetition_penalty: expected a number above 0, got 0."),
    ],
)
def test_errors(options, message):
    with pytest.raises(BadArgument) as caught:
        Sampling(**options)
    assert str(caught.value) == message


@pytest.mark.parametrize("temperature", [0, 1.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_nan_and_infinite_logits_are_reported(bad, temperature):
    with pytest.raises(BadArgument, match="model: expected finite logits, got"):
        Sampling(temperature=temperature).start(0).pick(torch.tensor([0.0, bad]), [])
