"""Columns: the queries that hear each key, against the transpose of the dense mask."""

import pytest
import torch
from hypothesis import given, settings

from rearview import Mask, Spans, Unsupported, causal, documents, full, tree, window
from rearview.masks import Frame
from rearview.masks import columns as columns_module
from tests.mask_families import FAMILIES
from tests.masks.strategies import frames, range_masks
from tests.masks.test_spans import anything, assert_canonical

CPU = torch.device("cpu")
quick = settings(deadline=None, max_examples=150)


@given(range_masks, frames)
@quick
def test_columns_are_the_transpose(mask: Mask, frame: Frame):
    columns = mask.spans_in(frame, CPU).columns
    assert (columns.q_len, columns.k_len) == (frame.k_len, frame.q_len)
    assert columns.to_bool().tolist() == mask.visible_in(frame, CPU).transpose(-1, -2).tolist()
    assert_canonical(columns)


@given(anything)
@quick
def test_columns_of_any_set(visible: torch.Tensor):
    spans = Spans.from_bool(visible)
    assert torch.equal(spans.columns.to_bool(), visible.transpose(-1, -2))
    assert spans.columns.columns.equals(spans)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES.keys())
def test_columns_of_every_family(family):
    mask: Mask = family(2, 4, 65)
    if mask.has_ranges:
        columns = mask.spans(65).columns.to_bool()
        assert torch.equal(columns, mask.visible_in(Frame.of(65), CPU).transpose(-1, -2))


def test_columns_of_a_long_mask_stay_small():
    length = 100_000
    for mask, most in ((causal(), 1), (causal() & window(64), 1), (documents(torch.arange(length) // 100), 1)):
        columns = mask.spans(length).columns
        assert columns.most_ranges == most
        assert columns.area == mask.spans(length).area
    assert full().spans(5, 3).columns.rows() == [[(0, 5)]] * 3
    # Node 1 is heard in two branches.
    assert tree([-1, 0, 0, 1]).spans(4).columns.rows() == [[(0, 4)], [(1, 2), (3, 4)], [(2, 3)], [(3, 4)]]


def test_one_key_that_is_heard_here_and_there_is_too_much_for_all(monkeypatch):
    monkeypatch.setattr(columns_module, "MOST_RANGES", 20)
    spans = (causal() & documents([0, 1] * 4)).spans(8)
    with pytest.raises(Unsupported) as caught:
        _ = spans.columns
    reason = "key 0 is heard by 4 separate runs of queries; as many ranges for each key take 256 B"
    assert str(caught.value) == f"spans.columns:\n  - {reason}"
