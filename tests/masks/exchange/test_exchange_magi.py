"""MagiAttention's slices, judged by their definition: rectangles with a type, pair by pair."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview import Mask, Unsupported, causal, documents, full, padding, per_head, prefix, shared_prefix, window
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.exchange import from_magi, to_magi
from tests.masks.strategies import frames, ranges

CPU = torch.device("cpu")


def count_of(q_ranges: Tensor, k_ranges: Tensor, kinds: Tensor, q_len: int, k_len: int) -> Tensor:
    """How often each pair is computed: int [query, key]."""
    found = torch.zeros(q_len, k_len, dtype=torch.int)
    for (q0, q1), (k0, k1), kind in zip(q_ranges.tolist(), k_ranges.tolist(), kinds.tolist(), strict=True):
        for i in range(q1 - q0):
            for j in range(k1 - k0):
                # Causal is aligned at the bottom right of the rectangle, inverse causal at its top left.
                looks_back = (k1 - k0 - 1 - j) >= (q1 - q0 - 1 - i)
                looks_ahead = j >= i
                if (kind in (0, 2) or looks_back) and (kind in (0, 1) or looks_ahead):
                    found[q0 + i, k0 + j] += 1
    return found


def laid_out(visible: Tensor, batch: int) -> Tensor:
    """bool [batch, 1, query, key] as one row of all queries and all keys."""
    return torch.block_diag(*visible.expand(batch, 1, -1, -1)[:, 0].int())


def assert_means(mask: Mask, frame: Frame) -> None:
    q_len, k_len, batch = frame.q_len, frame.k_len, mask.batch or 1
    start = None if frame.q_start == k_len - q_len else frame.q_start
    found = to_magi(mask, q_len, k_len, q_start=start)
    assert all(found[name].dtype == torch.int32 for name in ("q_ranges", "k_ranges", "attn_type_map"))
    expected = laid_out(mask.visible_in(frame, CPU), batch).view(batch * q_len, batch * k_len)
    slices = found["q_ranges"], found["k_ranges"], found["attn_type_map"]
    assert torch.equal(count_of(*slices, batch * q_len, batch * k_len), expected)
    if batch == 1 and 0 < q_len <= k_len:
        again = from_magi(**found, q_len=q_len, k_len=k_len)
        assert torch.equal(again.to_bool(q_len, k_len).int(), expected)


def test_every_family_means_the_same_there_or_is_refused(mask: Mask, size: tuple[int, int, int | None]):
    if mask.heads is not None and not torch.equal(
        (whole := mask.visible_in(Frame.of(*size), CPU))[:, :1].expand_as(whole), whole
    ):
        with pytest.raises(Unsupported, match="all heads share one mask there, but differ here"):
            to_magi(mask, *size[:2], q_start=size[2])
    else:
        assert_means(mask, Frame.of(*size))


@given(ranges, frames)
@settings(deadline=None, max_examples=100)
def test_any_mask_with_ranges(mask: Mask, frame: Frame):
    assert_means(mask, frame)


@pytest.mark.parametrize(
    ("mask", "slices"),
    [
        (causal(), [[0, 8, 0, 8, 1]]),
        (full(), [[0, 8, 0, 8, 0]]),
        (causal() & window(3), [[0, 3, 0, 3, 1], [3, 8, 1, 8, 3]]),
        (~causal(), [[0, 7, 1, 8, 2]]),
        (causal() & documents([0, 0, 0, 1, 1, 1, 1, 1]), [[0, 3, 0, 3, 1], [3, 8, 3, 8, 1]]),
        (shared_prefix(4, [2, 2]), [[0, 6, 0, 6, 1], [6, 8, 0, 4, 0], [6, 8, 6, 8, 1]]),
        (prefix(0), []),
    ],
    ids=repr,
)
def test_common_masks_take_few_slices(mask: Mask, slices: list[list[int]]):
    found = to_magi(mask, 8)
    rows = torch.cat([found["q_ranges"], found["k_ranges"], found["attn_type_map"].unsqueeze(1)], 1)
    assert rows.tolist() == slices


def test_a_batch_is_laid_out_as_one_row():
    found = to_magi(causal() & padding([2, 3]), 3)
    assert found["q_ranges"].tolist() == [[0, 2], [2, 3], [3, 6]]
    assert found["k_ranges"].tolist() == [[0, 2], [0, 2], [3, 6]]
    assert to_magi(causal(), 3, batch=2)["k_ranges"].tolist() == [[0, 3], [3, 6]]
    with pytest.raises(Unsupported) as caught:
        to_magi(per_head([causal(), full()]), 3)
    assert str(caught.value) == (
        "to_magi: MagiAttention cannot express per_head([causal(), full()]):\n"
        "  - all heads share one mask there, but differ here"
    )


_range = st.tuples(st.integers(0, 6), st.integers(0, 6)).map(sorted)


@given(st.lists(st.tuples(_range, _range, st.integers(0, 3)), max_size=3))
@settings(deadline=None, max_examples=200)
def test_slices_are_read_or_overlap(slices: list[tuple[list[int], list[int], int]]):
    q_ranges, k_ranges = (torch.tensor([each[n] for each in slices], dtype=torch.int32).view(-1, 2) for n in (0, 1))
    kinds = torch.tensor([each[2] for each in slices], dtype=torch.int32)
    counts = count_of(q_ranges, k_ranges, kinds, 6, 6)
    if counts.numel() and int(counts.max()) > 1:
        with pytest.raises(Unsupported, match="two of them hold the same pair, and MagiAttention would count it twice"):
            from_magi(q_ranges, k_ranges, kinds, q_len=6, k_len=6)
    else:
        found = from_magi(q_ranges, k_ranges, kinds, q_len=6, k_len=6)
        assert torch.equal(found.to_bool(6).int(), counts)


def test_slices_without_types_are_full():
    assert from_magi([[0, 2]], [[0, 2]], q_len=2, k_len=2).equals(full(), 2)


def test_no_slices_are_a_mask_in_which_nothing_is_heard():
    assert from_magi([], [], q_len=2, k_len=2).equals(~full(), 2)
    assert from_magi(**to_magi(~full(), 2), q_len=2, k_len=2).equals(~full(), 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0, 9]], [[0, 2]], [0]), r"^q_ranges: expected integers \[slices, 2\] from 0 to 4, start before end"),
        (([[2, 1]], [[0, 2]], [0]), r"^q_ranges: .*, got \[\[2, 1\]\]"),
        (([[0, 2]], [[0.5, 2]], [0]), r"^k_ranges: expected integers"),
        (([[0, 2], [1]], [[0, 2]], [0]), r"^q_ranges: expected integers .*, got \[\[0, 2\], \[1\]\]"),
        (([[0, 2]], [[0, 2]], ["full"]), r"^attn_type_map, k_ranges: .* got \['full'\]"),
        (
            ([[0, 2]], [[0, 2]], [4]),
            r"^attn_type_map, k_ranges: expected a type from 0 to 3 and .* each of the 1 slices",
        ),
        (([[0, 2]], [[0, 2], [0, 2]], [1]), r"^attn_type_map, k_ranges: .* got \[1\] and 2 ranges of keys"),
    ],
)
def test_refusals(arguments, message: str):
    with pytest.raises(BadArgument, match=message):
        from_magi(*arguments, q_len=4, k_len=4)
