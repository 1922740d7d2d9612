"""Packed sequences by their edges, both ways."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rearview import Unsupported, causal, documents, full, padding, per_head, prefix, window
from rearview.errors import BadArgument
from rearview.masks.exchange import from_cu_seqlens, to_cu_seqlens


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5), st.booleans())
@settings(deadline=None, max_examples=60)
def test_there_and_back(lengths: list[int], is_causal: bool):
    edges = [0, *torch.tensor(lengths).cumsum(0).tolist()]
    mask = from_cu_seqlens(edges, causal=is_causal)
    visible = torch.block_diag(*(torch.ones(n, n).tril() if is_causal else torch.ones(n, n) for n in lengths)).bool()
    assert torch.equal(mask.to_bool(edges[-1]), visible)
    found = to_cu_seqlens(mask, edges[-1], causal=is_causal)
    assert found.dtype == torch.int32
    assert found.tolist() == edges


def test_a_batch_is_one_row():
    ids = [[0, 0, 1, 1], [5, 5, 5, 5]]
    assert to_cu_seqlens(documents(ids), 4).tolist() == [0, 2, 4, 8]
    assert to_cu_seqlens(causal(), 4, causal=True, batch=2).tolist() == [0, 4, 8]
    assert to_cu_seqlens(full(), 4).tolist() == [0, 4]
    assert repr(from_cu_seqlens(torch.tensor([0, 2, 3]))) == "documents([0, 0, 1])"


@pytest.mark.parametrize(
    ("mask", "is_causal", "message"),
    [
        (causal() & documents([0, 0, 1, 1]), False, "query 0 hears the keys 0..0, and as .* it would hear 0..1"),
        (
            documents([0, 0, 1, 1]),
            True,
            "query 0 hears the keys 0..1, and as a part of .* hear 0..0",
        ),
        (causal() & window(2), True, "query 1 hears the keys 0..1, and as a part of .* hear 1..1"),
        (causal() | prefix(2), True, "query 0 hears the keys 0..1, and as a part of .* hear 0..0"),
        (padding([[False, True]] * 2) & documents([0, 1]), False, "query 0 hears nothing, and as .* hear 0..0"),
        (documents([0, 1, 1, 0]), False, "a query can hear one range of keys there, but query 0 hears 0..0 and 3..3"),
        (per_head([causal(), full()]), False, "all heads share one mask there, but differ here"),
    ],
    ids=repr,
)
def test_what_is_more_than_packed_sequences_is_refused(mask, is_causal: bool, message: str):
    with pytest.raises(Unsupported, match=message):
        to_cu_seqlens(mask, mask.own_length or 4, causal=is_causal)


def test_edges_that_are_none():
    with pytest.raises(BadArgument, match=r"^cu_seqlens: expected integers that start at 0 and rise .*, got \[1, 2\]"):
        from_cu_seqlens([1, 2])
    with pytest.raises(BadArgument, match=r"^cu_seqlens: expected integers that start at 0 and rise .*, got 'ab'"):
        from_cu_seqlens("ab")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadArgument, match=r"^cu_seqlens: expected the edges of the sequences, .*, got None"):
        from_cu_seqlens(None)  # pyright: ignore[reportArgumentType]
