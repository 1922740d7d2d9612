"""Ranges: exact for every mask expression, canonical, closed under the set operations, small at any length."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview import Mask, Spans, causal, chunks, documents, full, padding, per_head, prefix, window
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.mask import REMEMBERED_FRAMES
from tests.masks.strategies import LENGTH, frames, masks_with_heads, range_masks

CPU = torch.device("cpu")

# No deadline, because other programs may slow down the machine.
quick = settings(deadline=None, max_examples=80)


def assert_canonical(spans: Spans) -> None:
    starts, ends = spans.starts, spans.ends
    assert starts.dtype == ends.dtype == torch.int32
    empty = starts >= ends
    assert bool((starts >= 0).all())
    assert bool((ends <= spans.k_len).all())
    assert bool((starts[empty] == spans.k_len).all())
    assert bool((ends[empty] == spans.k_len).all())
    # Sorted, and at least one key between two ranges; empty ones last.
    assert bool((starts[..., 1:] > ends[..., :-1])[~empty[..., 1:]].all())
    assert not bool((empty[..., :-1] & ~empty[..., 1:]).any())
    if spans.q_len:
        assert spans.most_ranges == max(1, int((~empty).sum(-1).max()))


@given(range_masks, frames)
@settings(quick, max_examples=300)
def test_ranges_mean_what_the_mask_means(mask: Mask, frame: Frame):
    spans = mask.spans_in(frame, CPU)
    assert (spans.q_len, spans.k_len) == (frame.q_len, frame.k_len)
    assert spans.to_bool().tolist() == mask.visible_in(frame, CPU).tolist()
    assert_canonical(spans)


@given(masks_with_heads, frames)
@settings(quick, max_examples=300)
def test_simplifying_keeps_the_meaning(mask: Mask, frame: Frame):
    simple, whole = mask._simplify(frame).visible_in(frame, CPU), mask.visible_in(frame, CPU)
    assert simple.expand_as(whole).tolist() == whole.tolist()


@pytest.mark.parametrize(
    ("mask", "frame", "simple"),
    [
        (causal() & window(4096), Frame.of(8), "causal()"),
        (causal() & window(8), Frame.of(9), "causal() & window(8)"),
        (causal(), Frame.of(1, 9), "full()"),
        (causal(), Frame.of(2, 9), "causal()"),
        (window(9), Frame.of(2, 9), "causal()"),
        (window(8), Frame.of(1, 9), "window(8)"),
        (window(9) | causal() | window(3), Frame.of(9), "causal() | window(3)"),
        (window(9) | window(10), Frame.of(9), "causal()"),
        (window(9, ahead=8), Frame.of(9), "full()"),
        (window(9, ahead=7), Frame.of(9), "window(9, ahead=7)"),
        (causal() | prefix(9), Frame.of(9), "full()"),
        (causal() | prefix(8), Frame.of(9), "causal() | prefix(8)"),
        (chunks(9) & causal(), Frame.of(9), "causal()"),
        (chunks(9), Frame.of(10, 9), "chunks(9)"),
        (per_head([causal(), chunks(9)]), Frame.of(1, 9), "full()"),
        (per_head([causal(), full() & window(1)]), Frame.of(1, 9), "per_head([full(), window(1)])"),
    ],
)
def test_the_simplified_mask_in_a_frame(mask: Mask, frame: Frame, simple: str):
    assert repr(mask._simplify(frame)) == simple


# Set algebra on any sets, masks or not.

K_LEN = 7
rows = st.lists(st.lists(st.booleans(), min_size=K_LEN, max_size=K_LEN), min_size=3, max_size=3)
anything = st.one_of(
    st.builds(lambda one: torch.tensor([[one]]), rows),
    st.builds(lambda one, two: torch.tensor([[one], [two]]), rows, rows),
    st.builds(lambda one, two: torch.tensor([[one, two]]), rows, rows),
)


@given(anything)
@quick
def test_from_bool_and_back(visible: Tensor):
    spans = Spans.from_bool(visible)
    assert torch.equal(spans.to_bool(), visible)
    assert_canonical(spans)
    assert spans.rows() == [runs(row) for row in visible[0, 0].tolist()]


def runs(row: list[bool]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for key in (key for key, heard in enumerate(row) if heard):
        start = found.pop()[0] if found and found[-1][1] == key else key
        found.append((start, key + 1))
    return found


_edge = st.integers(-3, K_LEN + 3)


@given(st.lists(st.tuples(_edge, _edge), min_size=1, max_size=5))
@quick
def test_any_ranges_become_canonical(pairs: list[tuple[int, int]]):
    starts, ends = (torch.tensor(edges).view(1, 1, 1, -1) for edges in zip(*pairs, strict=True))
    spans = Spans.of(starts, ends, q_len=1, k_len=K_LEN)
    assert spans.to_bool()[0, 0, 0].tolist() == [any(a <= key < b for a, b in pairs) for key in range(K_LEN)]
    assert_canonical(spans)


@given(anything, anything, anything)
@quick
def test_the_laws_of_sets(x: Tensor, y: Tensor, z: Tensor):
    a, b, c = map(Spans.from_bool, (x, y, z))
    for spans, expected in ((a & b, x & y), (a | b, x | y), (~a, ~x)):
        assert torch.equal(spans.to_bool(), expected)
        assert_canonical(spans)
    assert (~~a).equals(a)
    assert (~(a & b)).equals(~a | ~b)
    assert (~(a | b)).equals(~a & ~b)
    assert (a & (b | c)).equals((a & b) | (a & c))
    assert (a | (b & c)).equals((a | b) & (a | c))
    assert (a & ~a).area == 0
    assert (a | ~a).to_bool().all()
    assert a.equals(b) == bool((x == y).all())


# What is read from ranges.


@given(range_masks, frames)
@quick
def test_counts(mask: Mask, frame: Frame):
    spans, visible = mask.spans_in(frame, CPU), mask.visible_in(frame, CPU)
    assert spans.keys_heard.tolist() == visible.sum(-1).tolist()
    assert spans.area == visible.sum()
    assert spans.share == pytest.approx(visible.double().mean() if visible.numel() else 0)
    assert spans.empty_rows.tolist() == (~visible.any(-1)).tolist()
    assert spans.some_row_empty == bool((~visible.any(-1)).any())
    assert spans.heard_keys.tolist() == visible.any(-2).tolist()
    assert spans.some_key_unheard == bool((~visible.any(-2)).any())
    if frame.q_len:
        assert spans.area == int(visible.sum())


@given(range_masks, frames)
@quick
def test_the_first_key_of_the_future(mask: Mask, frame: Frame):
    found = mask.spans_in(frame, CPU).first_future(frame.q_start).tolist()
    for item, visible in zip(found, mask.visible_in(frame, CPU).tolist(), strict=True):
        for head, queries in zip(item, visible, strict=True):
            ahead = [
                [key for key, heard in enumerate(row) if heard and key > index + frame.q_start]
                for index, row in enumerate(queries)
            ]
            assert head == [keys[0] if keys else frame.k_len for keys in ahead]


@given(range_masks, frames, st.integers(1, LENGTH + 1))
@quick
def test_blocks_of_queries(mask: Mask, frame: Frame, block: int):
    spans, visible = mask.spans_in(frame, CPU), mask.visible_in(frame, CPU)
    blocks = visible.split(block, dim=2) if frame.q_len else ()
    by_any, by_all = spans.heard_by_any(block), spans.heard_by_all(block)
    assert by_any.q_len == by_all.q_len == len(blocks)
    for index, rows_of_block in enumerate(blocks):
        assert by_any.to_bool()[:, :, index].tolist() == rows_of_block.any(2).tolist()
        assert by_all.to_bool()[:, :, index].tolist() == rows_of_block.all(2).tolist()
    assert_canonical(by_any)
    assert_canonical(by_all)


def test_a_million_positions():
    length = 1_000_000
    spans = ((causal() & window(4096)) | prefix(4)).spans(length)
    bytes_held = sum(edges.numel() * edges.itemsize for edges in (spans.starts, spans.ends))
    assert bytes_held <= 40 * length
    for query in (0, 1, 3, 4, 4094, 4095, 4096, 4098, 4099, 4100, 5000, 499_999, 999_998, 999_999):
        first = max(0, query - 4095)
        # From 4100 on there is a gap between the prefix and the window.
        expected = [(0, max(4, query + 1))] if first <= 4 else [(0, 4), (first, query + 1)]
        row = [(a, b) for a, b in zip(*(e[0, 0, query].tolist() for e in (spans.starts, spans.ends)), strict=True)]
        assert [pair for pair in row if pair[0] < pair[1]] == expected
    window_area = 4096 * 4097 // 2 + (length - 4096) * 4096
    assert spans.area == window_area + (3 + 2 + 1) + (1 + 2 + 3) + 4 * (length - 4099)


@pytest.mark.parametrize("mask", [documents(torch.arange(100_000) // 512), padding([100_000, 5]), chunks(512)])
def test_long_masks_stay_small(mask: Mask):
    spans = (causal() & mask).spans(100_000)
    assert sum(edges.numel() * edges.itemsize for edges in (spans.starts, spans.ends)) <= 16 * 100_000
    assert spans.keys_heard[0, 0, -1] == {"documents": 160, "padding": 100_000, "chunks": 160}[repr(mask).split("(")[0]]


# Remembering.


def test_a_frame_is_lowered_once():
    mask = causal() & window(3)
    assert mask.spans(8) is mask.spans(8, 8)
    assert mask.spans(8) is not mask.spans(8, 9)
    assert (causal() & window(3)).spans(8) is not mask.spans(8)


def test_only_the_last_frames_are_remembered():
    mask = causal()
    kept = mask.spans(1, 1)
    for step in range(2, 100):
        mask.spans(1, step)
        # A frame that is used again stays.
        assert mask.spans(1, 1) is kept
        assert len(mask._remembered) <= REMEMBERED_FRAMES
    last = mask.spans(1, 99)
    assert mask.spans(1, 99) is last
    assert (Frame.of(1, 50), CPU) not in mask._remembered


def test_invalid_ranges():
    with pytest.raises(BadArgument, match=r"^starts, ends: expected tensors \[batch, head, query, range\], got \[3\]"):
        Spans.of(torch.zeros(3), torch.zeros(3), q_len=1, k_len=1)
    with pytest.raises(BadArgument, match=r"^starts: expected 4 queries or 1 that broadcasts, got 3"):
        Spans.of(torch.zeros(1, 1, 3, 1), torch.zeros(1, 1, 3, 1), q_len=4, k_len=1)
    with pytest.raises(BadArgument, match=r"^visible: expected a bool tensor .*, got torch\.float32 of shape \[3, 3\]"):
        Spans.from_bool(torch.zeros(3, 3))
    with pytest.raises(BadArgument, match=r"^spans: expected the same frame of 2 queries and 2 keys, got 3 queries"):
        _ = causal().spans(2) & causal().spans(3)
    with pytest.raises(BadArgument, match=r"^spans: expected .* equal sizes, or 1, got \[2, 1, 1\] and \[3, 1, 1\]\.$"):
        _ = padding([1, 2]).spans(2) | padding([1, 2, 1]).spans(2)
