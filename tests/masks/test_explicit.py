"""Ranges that the caller gives, and ranges that a dense tensor turns out to be."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview import causal, dense, documents, from_additive, from_bool, padding, plan, prefix, ranges, window
from rearview.masks import Frame
from rearview.masks.encoding import can_encode, decode, encode
from rearview.masks.explicit import DenseRanges
from rearview.masks.item import item_of
from rearview.masks.parser import parse
from rearview.masks.runs import FEW_RANGES, are_few, has_few_runs, most_runs, runs_of
from rearview.masks.unstructured import Dense

CPU = torch.device("cpu")
LENGTH = 6
quick = settings(deadline=None, max_examples=80)


def by_hand(starts: Tensor, ends: Tensor) -> Tensor:
    """Pair by pair, for tensors [batch, head, query, range]."""
    items, heads, rows, _ = starts.shape
    found = torch.zeros(items, heads, rows, rows, dtype=torch.bool)
    for b in range(items):
        for h in range(heads):
            for i in range(rows):
                for start, end in zip(starts[b, h, i].tolist(), ends[b, h, i].tolist(), strict=True):
                    for j in range(max(0, start), min(end, rows)):
                        found[b, h, i, j] = True
    return found


@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        ((LENGTH,), (1, 1, LENGTH, 1)),
        ((LENGTH, 3), (1, 1, LENGTH, 3)),
        ((2, LENGTH, 3), (2, 1, LENGTH, 3)),
        ((2, 4, LENGTH, 3), (2, 4, LENGTH, 3)),
        ((1, 4, LENGTH, 1), (1, 4, LENGTH, 1)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64])
def test_the_axes(shape: tuple[int, ...], whole: tuple[int, ...], dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    starts, ends = torch.randint(-2, LENGTH + 3, (2, *shape), generator=generator).to(dtype)
    mask = ranges(starts, ends)
    expected = by_hand(starts.view(whole), ends.view(whole))
    assert (mask.batch, mask.heads) == tuple(size if size > 1 else None for size in whole[:2])
    assert torch.equal(mask.visible_in(Frame.of(LENGTH), CPU), expected)
    assert torch.equal(mask.spans(LENGTH).to_bool(), expected)
    # The same rows one by one over a cache, and in the middle of it.
    for position in range(LENGTH):
        step = mask.spans(1, position + 1).to_bool()
        assert torch.equal(step, expected[:, :, position : position + 1, : position + 1])
    assert torch.equal(mask.spans(2, LENGTH, q_start=1).to_bool(), expected[:, :, 1:3])
    if mask.batch:
        assert torch.equal(item_of(mask, batch=1, head=0).to_bool(LENGTH), expected[1, 0])


def test_rows_may_be_more_than_the_queries_and_edges_beyond_all_positions():
    mask = ranges([0] * 100, [2**62] * 100)
    assert mask.spans(3).rows() == [[(0, 3)]] * 3
    assert repr(mask) == "ranges(<100 ranges>)"
    assert ranges([-(2**62)], [1]).spans(1).rows() == [[(0, 1)]]


def test_it_is_encoded_and_parsed():
    mask = causal() & ~ranges([[0, 2], [1, 0], [0, 3]], [[1, 3], [2, 1], [2, 2]])
    again = decode(*encode(mask))
    assert repr(again) == repr(mask) == repr(parse(repr(mask)))
    assert again.equals(mask, 3)
    assert parse(repr(mask)).equals(mask, 3)


# Dense tensors.


def random_bits(*shape: int, share: float = 0.5, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("strip", [1, 7, 2**20])
def test_runs_of_a_tensor(monkeypatch: pytest.MonkeyPatch, strip: int):
    monkeypatch.setattr("rearview.masks.runs.PAIRS_PER_STRIP", strip)
    visible = random_bits(2, 3, 5, 11)
    starts, ends = runs_of(visible)
    for place in [(b, h, i) for b in range(2) for h in range(3) for i in range(5)]:
        heard = [False, *visible[place].tolist(), False]
        expected = [
            [j for j in range(11) if heard[j + 1] and not heard[j]],
            [j + 1 for j in range(11) if heard[j + 1] and not heard[j + 2]],
        ]
        missing = starts.shape[-1] - len(expected[0])
        assert starts[place].tolist() == expected[0] + [11] * missing
        assert ends[place].tolist() == expected[1] + [11] * missing
    assert most_runs(visible) == starts.shape[-1] == int((starts < 11).sum(-1).max())
    assert starts.dtype == ends.dtype == torch.int32


def test_runs_of_nothing():
    for shape in ((1, 1, 0, 4), (1, 1, 4, 0), (1, 1, 2, 2)):
        starts, ends = runs_of(torch.zeros(shape, dtype=torch.bool))
        assert starts.tolist() == ends.tolist() == [[[[shape[3]]] * shape[2]]]


def test_what_counts_as_few():
    assert are_few(FEW_RANGES, 1)
    assert not are_few(FEW_RANGES + 1, 64 * FEW_RANGES)
    assert are_few(FEW_RANGES + 1, 64 * (FEW_RANGES + 1))
    # An eighth of a bool tensor of ten million keys is still far too much.
    assert not are_few(1000, 10_000_000)


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        window(3, ahead=2),
        (causal() & window(9)) | prefix(2),
        causal() & documents(torch.arange(64) // 7),
        causal() & padding([64, 40, 7]),
        prefix(0),
    ],
    ids=repr,
)
def test_a_dense_tensor_gives_back_its_ranges(mask):
    visible = mask.visible_in(Frame.of(64), CPU)
    found = dense(visible)
    assert isinstance(found, DenseRanges)
    assert found.has_ranges
    assert can_encode(found)
    assert (found.batch, found.heads) == (mask.batch, mask.heads)
    assert found.spans(64).equals(mask.spans(64))
    assert found.equals(mask, 64)
    # Much less than the tensor is kept.
    assert sum(edge.numel() * edge.itemsize for edge in (found.starts, found.ends)) < visible.numel()
    for other in (from_bool(~visible, true_means="blocked"), from_additive(mask.to_additive(64))):
        assert other.has_ranges
        assert other.equals(mask, 64)
    again = decode(*encode(found))
    assert (repr(again), again.own_length) == (repr(found), 64)
    assert again.equals(mask, 64)


@given(st.integers(1, 40), st.integers(1, 80), st.floats(0, 1), st.integers(0, 5))
@quick
def test_a_dense_tensor_means_itself(rows: int, columns: int, share: float, seed: int):
    visible = random_bits(rows, columns, share=share, seed=seed)
    mask = dense(visible)
    if rows > columns:
        # The first rows stand before the first key.
        return
    assert mask.has_ranges == has_few_runs(visible[None, None])
    assert torch.equal(mask.to_bool(rows, columns), visible)
    assert torch.equal((~mask).to_bool(rows, columns), ~visible)
    if mask.has_ranges:
        assert torch.equal(mask.spans(rows, columns).to_bool()[0, 0], visible)
        assert torch.equal(mask.spans(1, columns).to_bool()[0, 0], visible[-1:])


def test_what_is_ragged_stays_dense():
    stripes = torch.arange(200) % 3 == 0
    mask = dense(stripes.expand(200, 200))
    assert isinstance(mask, Dense)
    assert not mask.has_ranges
    assert mask.range_obstacle == "the keys that a query hears are not a few ranges"
    assert (causal() & mask).range_obstacle == mask.range_obstacle
    # As many runs as there may be, and one more.
    for runs, kind in ((FEW_RANGES, DenseRanges), (FEW_RANGES + 1, Dense)):
        visible = torch.zeros(2, 100, dtype=torch.bool)
        visible[1, : 2 * runs : 2] = True
        assert isinstance(dense(visible), kind)


def test_what_the_caller_writes_into_the_tensor_later_does_not_matter():
    visible = causal().to_bool(5)
    mask = dense(visible)
    visible.zero_()
    assert mask.equals(causal(), 5)


def test_plan_says_that_the_ranges_were_found():
    x = torch.zeros(1, 2, 64, 16)
    found = str(plan(x, x, x, mask=dense((causal() & window(8)).to_bool(64))))
    assert "mask dense(<64 x 64 bool, 1 range per row>): 11.8 % visible" in found
    ragged = str(plan(x[:, :, :40], x, x, mask=dense((torch.arange(80) % 2 == 0).expand(80, 80)), q_start=0))
    assert "mask dense(<80 x 80 bool>): no ranges, " in ragged


# Data whose rows have too many runs.


def test_interleaved_documents_have_no_ranges_where_these_would_be_larger_than_the_dense_form():
    mask = causal() & documents(torch.arange(8000) % 2)
    assert not mask.has_ranges
    assert mask.range_obstacle == "the tokens of one document lie in 4,000 separate runs"
    assert mask.tiles(8000, block=1000).counts == {"skipped": 28, "partial": 36, "full": 0}
    # A frame of one step is small, and ranges that are asked for by name are exact.
    assert mask.spans(1, 9).rows() == [[(0, 1), (2, 3), (4, 5), (6, 7), (8, 9)]]
    assert (causal() & documents(torch.arange(8000) // 100 % 2)).has_ranges


def test_padding_full_of_holes_has_no_ranges():
    mask = causal() & padding(random_bits(2, 8000, share=0.8))
    assert not mask.has_ranges
    assert mask.range_obstacle is not None
    assert mask.range_obstacle.startswith("the real keys of one item lie in 1,")
    assert (causal() & padding(torch.arange(8000).expand(2, -1) % 100 > 3)).has_ranges


def test_a_mask_that_cannot_be_read_yet_is_taken_at_its_word():
    ids = torch.arange(100) % 2
    assert not documents(ids).has_ranges
    assert documents(ids.to("meta")).has_ranges
    assert dense(torch.ones(3, 3, dtype=torch.bool, device="meta")).has_ranges is False
