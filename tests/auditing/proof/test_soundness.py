"""Random programs: whoever brute force finds to be heard, the proof has said so. For these weights and for others."""

import random

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview.auditing.proof import prove
from tests.auditing.proof.programs import STEPS
from tests.auditing.proof.search import heard_by, weights

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
SIZES = st.tuples(st.integers(1, 2), st.integers(2, 5), st.integers(2, 4))


def check(steps: list[int], sizes: tuple[int, int, int], seed: int, *, bounded: bool) -> None:
    def program(x: Tensor, drawn: torch.Generator) -> Tensor:
        structure = random.Random(seed)
        h = x
        for number in steps:
            h = STEPS[number](h, drawn, structure)
            # Twenty steps in a row would overflow, and what is infinite cannot move.
            h = h.clamp(-20, 20) if bounded else h
        return h

    x = torch.randn(*sizes, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    proof = prove(lambda x: program(x, weights(seed)), x)
    names = [STEPS[number].__name__ for number in steps]
    assert not proof.unknown_ops, (names, proof.unknown_ops)
    for other in (seed, seed + 17):
        found = heard_by(program, x if other == seed else torch.randn_like(x), seed=other)
        denied = found & ~proof.hears
        assert not denied.any(), (names, sizes, denied.nonzero().tolist()[:5])


@settings(SLOW, max_examples=150)
@given(
    steps=st.lists(st.sampled_from(range(len(STEPS))), min_size=1, max_size=4), sizes=SIZES, seed=st.integers(0, 10**6)
)
def test_no_dependence_is_denied(steps: list[int], sizes: tuple[int, int, int], seed: int):
    check(steps, sizes, seed, bounded=False)


@settings(SLOW, max_examples=40)
@given(
    steps=st.lists(st.sampled_from(range(len(STEPS))), min_size=5, max_size=20), sizes=SIZES, seed=st.integers(0, 10**6)
)
def test_long_programs(steps: list[int], sizes: tuple[int, int, int], seed: int):
    check(steps, sizes, seed, bounded=True)
