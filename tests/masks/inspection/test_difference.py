"""diff: exact against brute force, and readable."""

import textwrap

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rearview import RearviewError, causal, dense, dilated, documents, full, padding, per_head, prefix, where, window
from rearview.masks.inspection.difference import MOST_EXAMPLES, Cell
from tests.masks.strategies import LENGTH, masks_with_heads


@given(masks_with_heads, masks_with_heads, st.integers(1, LENGTH), st.integers(1, LENGTH))
@settings(deadline=None)
def test_diff_is_brute_force(first, second, q_len: int, k_len: int):
    q_start = min(2, LENGTH - q_len)
    a, b = (mask.to_bool(q_len, k_len, q_start=q_start) for mask in (first, second))
    a, b = torch.broadcast_tensors(a, b)
    if a.ndim == 2:
        a, b = a[None, None], b[None, None]
    found = first.diff(second, q_len, k_len, q_start=q_start)
    assert found.only_first == int((a & ~b).sum())
    assert found.only_second == int((b & ~a).sum())
    assert found.rows == int((a != b).any(-1).sum())
    assert found.same == torch.equal(a, b) == first.equals(second, q_len, k_len, q_start=q_start)
    where_they_differ = (a != b).nonzero()[:MOST_EXAMPLES].tolist()
    assert found.examples == tuple(Cell(n, h, q + q_start, k) for n, h, q, k in where_they_differ)
    assert str(found).splitlines()[2].endswith("the same") == found.same


def test_the_drawing():
    found = (causal() & window(3)).diff(causal() | prefix(2), 4)
    assert str(found) == textwrap.dedent(
        r"""
        - causal() & window(3)  ·  0 pairs are heard only here
        + causal() | prefix(2)  ·  2 pairs are heard only here
        4 queries x 4 keys  ·  2 queries differ

         query \ key   0  1  2  3
         0             ■  +  ·  ·
         1             ■  ■  ·  ·
         2             ■  ■  ■  ·
         3             +  ■  ■  ■

         ■ both   · neither   - only the first   + only the second
        """
    ).strip("\n")


def test_words_at_the_rows_and_columns():
    drawing = causal().diff(window(1), 2).show("I love")
    assert drawing.splitlines()[7] == " 1  love         -      ■"
    assert "only first" in [piece.role for piece in drawing.pieces]


def test_two_that_mean_the_same():
    found = causal().diff(window(8), 8)
    assert found.same
    assert found.examples == ()
    assert str(found) == "- causal()\n+ window(8)\n8 queries x 8 keys  ·  the same"


def test_a_million_positions_by_ranges():
    found = ((causal() & window(4096)) | prefix(4)).diff(causal() & window(4096), 1_000_000)
    # Queries 0, 1 and 2 hear ahead; from 4096 on the window leaves the prefix, one key at a time.
    assert found.only_first == (3 + 2 + 1) + (1 + 2 + 3) + 4 * (1_000_000 - 4099)
    assert found.only_second == 0
    drawing = str(found)
    assert max(map(len, drawing.splitlines())) < 100
    assert "- only the first" in drawing


def test_blocks_with_differences_in_both_directions_are_marked():
    even = dense((torch.arange(64) % 2 == 0).expand(64, 64))
    drawing = str(even.diff(~even, 64))
    assert drawing.count("±") == 32 * 32 + 1
    assert "± some of either" in drawing


def test_the_first_item_that_differs_is_drawn():
    found = padding([3, 3]).diff(padding([3, 2]), 3)
    assert found.examples[0] == Cell(1, 0, 0, 2)
    assert "drawn: batch item 1 of 2" in str(found)
    heads = per_head([causal(), causal()]).diff(causal(), 3)
    assert heads.same
    assert "drawn: head 1 of 2" in str(per_head([causal(), full()]).diff(causal(), 3))


def test_a_mask_for_all_items_is_compared_with_each():
    assert causal().diff(causal() & padding([2, 0]), 2).only_first == 3


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (padding([1, 2]), padding([1, 2, 3]), "mask: expected masks for one batch size, got 2 and 3."),
        (
            per_head([causal()] * 2),
            per_head([causal()] * 3),
            "mask: expected masks for one number of heads, got 2 and 3.",
        ),
        (causal(), "causal()", "other: expected a mask to compare with, got 'causal()'."),
    ],
)
def test_what_cannot_be_compared_is_refused(first, second, message: str):
    with pytest.raises(RearviewError) as caught:
        first.diff(second, 3)
    assert str(caught.value) == message


def test_words_must_be_as_many_as_were_compared():
    with pytest.raises(
        RearviewError, match="tokens: expected 3 words, as compared, and 3 keys, got 2 queries x 2 keys"
    ):
        causal().diff(full(), 3).show("a b")


def test_too_many_pairs_to_draw_are_still_counted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rearview.masks.inspection.hearing.MOST_PAIRS_DRAWN", 100)
    found = dilated(1).diff(where(lambda i, j: j > 0), 12)
    assert str(found).splitlines()[-1] == "12 queries x 12 keys  ·  12 queries differ"


def test_more_queries_than_keys():
    found = causal().diff(documents([0, 0]), 3, 2)
    assert (found.only_first, found.only_second) == (0, 1)
    assert " -1            ·  ·" in str(found)
    assert found.show(3, 2) == str(found)
