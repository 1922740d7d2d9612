"""The joined statistics of a prompt and of the steps after it are those of one call."""

from __future__ import annotations

import itertools

import pytest
import torch

from rearview import Mask, causal, prefix, window
from rearview.attention import Statistics, alibi, statistics
from rearview.errors import BadArgument
from tests.attention.full_matrix import FullMatrix
from tests.mask_families import FAMILIES


def in_pieces(query, key, mask: Mask, cuts: list[int], at_once: bool = False, **options) -> Statistics:
    """The statistics of the sequence in several calls, split at these positions."""
    seen = statistics(query[:, :, : cuts[0]], key[:, :, : cuts[0]], mask=mask, **options)
    width = seen.bin_width or None
    steps = []
    for start, stop in itertools.pairwise(cuts):
        step = statistics(query[:, :, start:stop], key[:, :, :stop], mask=mask, bin_width=width, **options)
        steps.append(step)
        if not at_once:
            seen, steps = seen.joined(*steps), []
            width = seen.bin_width or None
    return seen.joined(*steps)


@pytest.fixture
def qk() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    return torch.randn(2, 4, 50, 8, dtype=torch.float64), torch.randn(2, 2, 50, 8, dtype=torch.float64)


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize(
    "family", [name for name in FAMILIES if not name.startswith(("full", "window ahead", "chunks", "only", "per head"))]
)
def test_joined_calls_equal_one_call(qk, family: str, at_once: bool):
    query, key = qk
    mask = FAMILIES[family](2, 4, 50) & causal()
    cuts = [9, 10, 11, 25, *range(26, 51)]
    seen = in_pieces(query, key, mask, cuts, at_once=at_once, map_size=8, links=6)
    # 9 positions in 8 bins need bins of 2; 50 positions need 7, so the width has doubled twice.
    assert seen.bin_width == 8
    assert seen.map is not None
    assert seen.map.shape[-2:] == (7, 7)
    FullMatrix(query, key, mask).check(seen, within=1e-10)
    whole = statistics(query, key, mask=mask, map_size=8, links=6, bin_width=8)
    for name in ("lse", "entropy", "received", "expected", "first", "distance", "histogram", "map", "expected_map"):
        torch.testing.assert_close(getattr(seen, name), getattr(whole, name), atol=1e-12, rtol=1e-12)
    assert seen.histogram_edges == whole.histogram_edges
    assert seen.frame == whole.frame


@pytest.mark.parametrize("options", [{"map_size": None}, {"links": 0}, {"bias": alibi(4), "softcap": 2.0}])
def test_options(qk, options: dict):
    query, key = qk
    seen = in_pieces(query, key, causal(), [40, 41, 50], **options)
    kept = {name: value for name, value in options.items() if name in ("bias", "softcap")}
    FullMatrix(query, key, causal(), **kept).check(seen, within=1e-10)


def test_a_preallocated_cache(qk):
    query, key = qk
    key[:, :, 30:] = torch.nan
    parts = [
        statistics(query[:, :, a:b], key, mask=causal(), q_start=a, map_size=5)
        for a, b in ((0, 20), (20, 21), (21, 30))
    ]
    assert [part.bin_width for part in parts] == [10, 10, 10]
    FullMatrix(query[:, :, :30], key.nan_to_num(0), causal(), q_start=0).check(
        parts[0].joined(*parts[1:]), within=1e-10
    )


def test_joining_nothing(qk):
    seen = statistics(*qk)
    assert seen.joined() is seen


@pytest.mark.parametrize("mask", [causal(), window(3) | prefix(1)])
def test_a_long_generation_in_float32(mask: Mask):
    query, key = torch.randn(1, 2, 200, 8), torch.randn(1, 2, 200, 8)
    seen = in_pieces(query, key, mask & causal(), [5, *range(6, 201)], map_size=16, links=4)
    FullMatrix(query, key, mask & causal()).check(seen, within=1e-5)


def test_statistics_that_cannot_be_joined(qk):
    query, key = qk
    first = statistics(query[:, :, :20], key[:, :, :20], map_size=8)
    with pytest.raises(
        BadArgument, match=r"later: expected queries from position 20 on, over at least 20 keys, got .*30"
    ):
        first.joined(statistics(query[:, :, 30:31], key[:, :, :31], map_size=8))
    with pytest.raises(
        BadArgument, match=r"later: expected the same batch size and number of heads, got \[1, 4\] after \[2, 4\]"
    ):
        first.joined(statistics(query[:1, :, 20:21], key[:1, :, :21], map_size=8))
    with pytest.raises(
        BadArgument, match="later: expected map_size=8 and links=32, as in the first call, got map_size=9 and links=32"
    ):
        first.joined(statistics(query[:, :, 20:21], key[:, :, :21], map_size=9))
    with pytest.raises(
        BadArgument,
        match=r"later: expected bin widths that differ by powers of two, got 3 and 10\. Pass bin_width=earlier",
    ):
        first.joined(statistics(query[:, :, 20:], key, map_size=8, bin_width=5, q_start=20))
    with pytest.raises(BadArgument, match="later: expected Statistics, got int"):
        first.joined(3)  # pyright: ignore[reportArgumentType]
