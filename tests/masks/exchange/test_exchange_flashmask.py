"""FlashMask's indices, judged by their definition: a loop over items, heads and keys that hides rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rearview import (
    Mask,
    Unsupported,
    causal,
    dilated,
    documents,
    full,
    padding,
    per_head,
    prefix,
    shared_prefix,
    tree,
    window,
)
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.exchange import from_flashmask, to_flashmask

CPU = torch.device("cpu")


def dense_of(indices: Tensor, *, causal: bool, q_len: int) -> Tensor:
    """What the attention of Paddle hears: bool [batch, head, query, key]."""
    batch, heads, k_len, numbers = indices.shape
    heard = torch.ones(batch, heads, q_len, k_len, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for j in range(k_len):
                number = [max(0, n) for n in indices[b, h, j].tolist()]
                column = heard[b, h, :, j]
                if causal:
                    column[: max(0, j - (k_len - q_len))] = False
                    column[number[0] : number[1] if numbers == 2 else q_len] = False
                elif numbers == 2:
                    column[number[0] :] = False
                    column[: number[1]] = False
                else:
                    column[number[0] : number[1]] = False
                    column[number[2] : number[3]] = False
    return heard


def _runs(rows: Tensor) -> Tensor:
    """The runs of True in the row that has the most."""
    return (rows & ~torch.nn.functional.pad(rows, (1, 0))[..., :-1]).sum(-1).max()


def test_every_family_means_the_same_there_or_is_refused(mask: Mask, size: tuple[int, int, int | None]):
    q_len, k_len, q_start = size
    expected = mask.visible_in(Frame.of(*size), CPU)
    silent = ~expected.transpose(-1, -2)
    back = (torch.arange(k_len).view(-1, 1) - (k_len - q_len)) > torch.arange(q_len)
    with_causal = bool(silent[..., back].all()) and int(_runs(silent & ~back)) <= 1
    if not with_causal and int(_runs(silent)) > 2:
        with pytest.raises(Unsupported, match="it hides a key from two ranges of rows at most, but key"):
            to_flashmask(mask, q_len, k_len, q_start=q_start)
        return
    found = to_flashmask(mask, q_len, k_len, q_start=q_start)
    indices = found["startend_row_indices"]
    assert indices.dtype == torch.int32
    assert torch.equal(dense_of(indices, causal=found["causal"], q_len=q_len).expand_as(expected), expected)
    again = from_flashmask(indices, causal=found["causal"], q_len=q_len)
    assert torch.equal(again.visible_in(Frame.of(q_len, k_len), CPU).expand_as(expected), expected)


_number = st.integers(-2, 9)


@given(st.data(), st.sampled_from([(True, 1), (True, 2), (False, 2), (False, 4)]), st.integers(1, 7), st.integers(0, 3))
@settings(deadline=None, max_examples=150)
def test_any_indices_are_read(data: st.DataObject, kind: tuple[bool, int], q_len: int, more: int):
    is_causal, numbers = kind
    k_len = q_len + more
    shape = (2, 2, k_len, numbers)
    values = data.draw(st.lists(_number, min_size=4 * k_len * numbers, max_size=4 * k_len * numbers))
    indices = torch.tensor(values, dtype=torch.int32).view(shape)
    expected = dense_of(indices, causal=is_causal, q_len=q_len)
    found = from_flashmask(indices, causal=is_causal, q_len=q_len)
    assert torch.equal(found.visible_in(Frame.of(q_len, k_len), CPU).expand_as(expected), expected)
    assert torch.equal(found.spans(q_len, k_len).to_bool().expand_as(expected), expected)


@pytest.mark.parametrize(
    ("mask", "is_causal", "numbers"),
    [
        (causal(), True, [[6]] * 6),
        (causal() & window(2), True, [[2], [3], [4], [5], [6], [6]]),
        (shared_prefix(2, [2, 2]), True, [[6], [6], [4], [4], [6], [6]]),
        (full(), False, [[6, 0]] * 6),
        (documents([0, 0, 0, 1, 1, 1]), False, [[3, 0]] * 3 + [[6, 3]] * 3),
        (causal() | prefix(3), False, [[6, 0]] * 3 + [[6, 3], [6, 4], [6, 5]]),
        (causal() & padding([6, 4]), True, None),
    ],
    ids=repr,
)
def test_the_shortest_form_is_taken(mask: Mask, is_causal: bool, numbers: list[list[int]] | None):
    found = to_flashmask(mask, 6)
    assert found["causal"] is is_causal
    if numbers is not None:
        assert found["startend_row_indices"][0, 0].tolist() == numbers


def test_what_is_hidden_from_too_many_rows_is_refused():
    with pytest.raises(Unsupported) as caught:
        to_flashmask(tree([-1, 0, 0, 1, 2, 1]), 6)
    assert str(caught.value) == (
        "to_flashmask: FlashMask cannot express tree([-1, 0, 0, 1, 2, 1]) for 6 queries and 6 keys:\n"
        "  - it hides a key from two ranges of rows at most, but key 1 is hidden from rows 0..0, 2..2, 4..4 here\n"
        "attend(mask=...) takes any mask."
    )


def test_items_heads_and_batches():
    assert to_flashmask(causal() & padding([4, 2]), 4)["startend_row_indices"].shape == (2, 1, 4, 1)
    assert to_flashmask(causal(), 4, batch=3)["startend_row_indices"].shape == (3, 1, 4, 1)
    assert to_flashmask(per_head([causal(), causal() & window(2)]), 4)["startend_row_indices"].shape == (1, 2, 4, 1)
    with pytest.raises(Unsupported, match="it hides a key from two ranges"):
        to_flashmask(dilated(2), 9)


@pytest.mark.parametrize(
    ("indices", "is_causal", "message"),
    [
        (
            torch.zeros(1, 1, 4, 3, dtype=torch.int32),
            True,
            r"expected int32 \[batch, head, key, 1 or 2\] for c",
        ),
        (
            torch.zeros(1, 1, 4, 1, dtype=torch.int32),
            False,
            r"expected int32 \[batch, head, key, 2 or 4\] for c",
        ),
        (torch.zeros(1, 4, 2, dtype=torch.int32), True, r"got an int32 tensor of shape \[1, 4, 2\]"),
        (torch.zeros(1, 1, 4, 1), True, "got a float32 tensor"),
        ([1, 2], True, "got list"),
    ],
)
def test_refusals(indices, is_causal: bool, message: str):
    with pytest.raises(BadArgument, match=f"^startend_row_indices: .*{message}"):
        from_flashmask(indices, causal=is_causal)


def test_more_queries_than_keys_are_refused_on_the_way_back():
    with pytest.raises(BadArgument, match=r"^q_len: expected at most 4, the number of keys, got 5\.$"):
        from_flashmask(torch.zeros(1, 1, 4, 1, dtype=torch.int32), causal=True, q_len=5)
