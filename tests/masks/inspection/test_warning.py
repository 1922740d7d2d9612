"""Warnings: the right ones, with the right numbers, and none for correct masks."""

import pytest
import torch

from rearview import causal, dense, dilated, documents, full, padding, per_head, prefix, where, window
from rearview.masks import Frame
from rearview.masks.inspection.hearing import hearing_of
from tests.mask_families import FAMILIES


def kinds(mask, *size, **options) -> list[str]:
    return [warning.kind for warning in mask.warnings(*size, **options)]


def messages(mask, *size, **options) -> list[str]:
    return [warning.message for warning in mask.warnings(*size, **options)]


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        causal() & window(2),
        causal() & documents([0, 0, 1, 1]),
        causal() & dilated(2),
        dense(torch.ones(4, 4, dtype=torch.bool).tril()),
        per_head([causal(), window(1)]),
    ],
)
def test_a_correct_mask_has_no_warnings(mask):
    assert mask.warnings(4) == ()


def test_rows_that_hear_nothing_are_named():
    mask = causal() & padding([[False, True, True, True, True, True, True, True]]) & where(lambda i, j: i != 5)
    assert messages(mask, 8) == [
        "batch item 0: 2 of 8 queries hear nothing: positions 0, 5; their output is 0",
    ]


@pytest.mark.parametrize(
    ("rows", "listed"),
    [
        ([3], "1 of 12 queries hears nothing: position 3; its output is 0"),
        ([2, 3], "2 of 12 queries hear nothing: positions 2, 3; their output is 0"),
        ([0, 1, 2, 7], "4 of 12 queries hear nothing: positions 0 to 2, 7; their output is 0"),
        ([0, 2, 4, 6, 8], "5 of 12 queries hear nothing: positions 0, 2, 4, 6, …; their output is 0"),
    ],
)
def test_positions_are_listed_in_runs(rows: list[int], listed: str):
    visible = torch.ones(12, 12, dtype=torch.bool).tril()
    visible[rows] = False
    assert messages(dense(visible), 12) == [listed]


def test_positions_count_from_where_the_queries_stand():
    mask = causal() & ~prefix(8)
    assert messages(mask, 3, 10) == ["1 of 3 queries hears nothing: position 7; its output is 0"]
    assert messages(causal() & ~prefix(2), 3, q_start=1) == [
        "1 of 3 queries hears nothing: position 1; its output is 0"
    ]


def test_a_visible_future_names_the_first_pair():
    assert messages(causal() | prefix(3), 6) == [
        "position 0 hears position 1, which comes later; 2 of 6 queries hear ahead, "
        "and a model that generates left to right has nothing there yet"
    ]
    assert kinds(full(), 1) == []
    assert kinds(window(1, ahead=1), 3) == ["visible future"]


def test_the_first_item_and_head_are_named():
    mask = per_head([causal(), full()]) & padding([3, 3])
    assert messages(mask, 3)[0].startswith("batch item 0, head 1: position 0 hears position 1")
    assert messages(mask, 3)[0].endswith(" (and in 1 more such place)")
    assert messages(causal() & padding([2, 0, 0, 0]), 2) == [
        "batch item 1: 2 of 2 queries hear nothing: positions 0, 1; their output is 0 (and in 2 more such places)"
    ]


@pytest.mark.parametrize(
    "mask", [~causal(), ~(causal() & window(3)), ~(causal() & documents([0, 0, 0, 1, 1, 1])), ~(causal() | prefix(2))]
)
def test_an_inverted_mask_is_noticed_in_both_forms(mask):
    for form in (mask, dense(mask.to_bool(6))):
        assert kinds(form, 6)[-1] == "looks inverted"
    assert messages(mask, 6)[-1].endswith(f"did you mean {~mask!r}?")


@pytest.mark.parametrize(
    "mask", [full(), ~window(1), documents([0, 0, 1, 1]), ~documents([0, 0, 1, 1]), window(1, ahead=3), prefix(0)]
)
def test_what_merely_looks_ahead_is_not_called_inverted(mask):
    assert "looks inverted" not in kinds(mask, 4)


def test_the_bug_of_two_polarities_is_noticed():
    # True = blocked, as in nn.MultiheadAttention, passed to a library where True = may be heard.
    blocked = torch.triu(torch.ones(5, 5, dtype=torch.bool), diagonal=1)
    assert kinds(dense(blocked), 5) == ["empty row", "visible future", "looks inverted"]


@pytest.mark.parametrize("size", [(5, 5), (2, 5), (5, 2), (1, 1)])
@pytest.mark.parametrize("name", FAMILIES)
def test_ranges_and_strips_count_the_same(name: str, size: tuple[int, int]):
    mask, frame = FAMILIES[name](2, 2, 5), Frame.of(*size)
    if size == (5, 2) and "dense" in name:
        return
    if mask.has_ranges:
        visible = mask.spans(*size).to_bool()
    else:
        visible = mask.visible_in(frame, torch.device("cpu"))
    hearing = hearing_of(mask, frame)
    position = torch.arange(frame.q_start, frame.q_end).view(-1, 1)
    key = torch.arange(frame.k_len)
    future = visible & (key > position)
    assert torch.equal(hearing.keys, visible.sum(-1))
    assert torch.equal(hearing.ahead, future.sum(-1))
    assert torch.equal(hearing.itself, (visible & (key == position)).any(-1))
    first = torch.where(future, key, frame.k_len).amin(-1)
    assert torch.equal(hearing.first_ahead.int(), first.int())


def test_a_tall_mask_is_counted_in_strips(monkeypatch: pytest.MonkeyPatch):
    mask = dilated(3)
    whole = hearing_of(mask, Frame.of(50))
    monkeypatch.setattr("rearview.masks.inspection.hearing.PAIRS_PER_STRIP", 120)
    strips = hearing_of(mask, Frame.of(50))
    assert all(torch.equal(getattr(whole, n), getattr(strips, n)) for n in ("keys", "ahead", "first_ahead", "itself"))


def test_no_queries_no_warnings():
    assert causal().warnings(0) == dilated(2).warnings(0) == ()


def test_a_warning_reads_as_a_line():
    assert str((~causal()).warnings(2)[0]).startswith("empty row: 1 of 2 queries")
