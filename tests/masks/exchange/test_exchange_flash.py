"""FlashAttention needs a GPU, so its documented meaning is implemented here, pair by pair, as the reference."""

from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import (
    Mask,
    RearviewError,
    Unsupported,
    causal,
    chunks,
    dense,
    documents,
    full,
    padding,
    per_head,
    prefix,
    window,
)
from rearview.masks.exchange import FlashArguments, from_flash, to_flash

Size = tuple[int, int, int | None]


def flash_hears(arguments: FlashArguments, batch: int, q_len: int, k_len: int) -> Tensor:
    """Which keys FlashAttention-2 hears for these arguments: bool [batch, q_len, k_len].

    "Query at position i will only attend to keys between [i + seqlen_k - seqlen_q - window_size[0],
    i + seqlen_k - seqlen_q + window_size[1]] inclusive"; causal sets window_size[1] to 0.
    """
    left, right = arguments["window_size"]
    right = 0 if arguments["causal"] else right
    q_edges = arguments.get("cu_seqlens_q", torch.arange(batch + 1) * q_len).tolist()
    k_edges = arguments.get("cu_seqlens_k", torch.arange(batch + 1) * k_len).tolist()
    assert (q_edges[0], q_edges[-1], k_edges[0], k_edges[-1]) == (0, batch * q_len, 0, batch * k_len)
    hears = torch.zeros(batch * q_len, batch * k_len, dtype=torch.bool)
    for q0, q1, k0, k1 in zip(q_edges, q_edges[1:], k_edges, k_edges[1:], strict=False):
        assert q1 - q0 <= arguments.get("max_seqlen_q", q_len)
        assert k1 - k0 <= arguments.get("max_seqlen_k", k_len)
        for i in range(q1 - q0):
            place = i + (k1 - k0) - (q1 - q0)
            for j in range(k1 - k0):
                hears[q0 + i, k0 + j] = (left < 0 or j >= place - left) and (right < 0 or j <= place + right)
    blocks = hears.view(batch, q_len, batch, k_len)
    apart = torch.eye(batch, dtype=torch.bool).view(batch, 1, batch, 1)
    assert not bool((blocks & ~apart).any()), "an item hears another"
    return blocks.diagonal(dim1=0, dim2=2).permute(2, 0, 1)


def assert_exact(mask: Mask, q_len: int, k_len: int, q_start: int | None = None, batch: int | None = None) -> Any:
    arguments = to_flash(mask, q_len, k_len, q_start=q_start, batch=batch)
    items = batch or mask.batch or 1
    visible = mask.to_bool(q_len, k_len, q_start=q_start)
    visible = visible[:, 0] if visible.ndim == 4 else visible
    assert torch.equal(flash_hears(arguments, items, q_len, k_len), visible.expand(items, -1, -1))
    return arguments


def test_exact_or_refused(mask: Mask, size: Size):
    # What is refused here has its reasons tested below; nothing else may be raised, and nothing inexact returned.
    with suppress(Unsupported):
        assert_exact(mask, *size)


@pytest.mark.parametrize(
    ("mask", "sizes", "is_causal", "window_size"),
    [
        (causal(), (9,), True, (-1, -1)),
        (causal(), (4, 9), True, (-1, -1)),
        (causal(), (1, 9), False, (-1, -1)),
        (causal(), (9, 4), True, (-1, -1)),
        (full(), (9,), False, (-1, -1)),
        # FlashAttention does not count the query itself: a window of 3 is 2 to the left.
        (window(3), (9,), True, (2, 0)),
        (causal() & window(3), (4, 9), True, (2, 0)),
        (window(1), (9,), True, (0, 0)),
        (window(3, ahead=2), (9,), False, (2, 2)),
        (window(100, ahead=2), (9,), False, (-1, 2)),
        (window(3, ahead=100), (9,), False, (2, -1)),
        (causal() & window(4096), (9,), True, (-1, -1)),
        (causal() & documents([3] * 9), (9,), True, (-1, -1)),
        (causal() & padding([9, 9]), (9,), True, (-1, -1)),
        (per_head([causal(), window(9)]), (9,), True, (-1, -1)),
        (dense(torch.ones(9, 9).tril().bool()), (9,), True, (-1, -1)),
    ],
    ids=str,
)
def test_bands(mask: Mask, sizes, is_causal, window_size):
    expected = {"causal": is_causal, "window_size": window_size}
    assert to_flash(mask, *sizes) == expected
    assert_exact(mask, sizes[0], sizes[-1])


@pytest.mark.parametrize(
    ("mask", "sizes", "is_causal", "window_size", "queries", "keys"),
    [
        (documents([0, 0, 0, 1, 1]), (5,), False, (-1, -1), [0, 3, 5], [0, 3, 5]),
        (causal() & documents([0, 0, 0, 1, 1]), (5,), True, (-1, -1), [0, 3, 5], [0, 3, 5]),
        (causal() & window(2) & documents([0, 0, 0, 1, 1]), (5,), True, (1, 0), [0, 3, 5], [0, 3, 5]),
        (window(2, ahead=1) & documents([0, 0, 0, 1, 1, 1]), (6,), False, (1, 1), [0, 3, 6], [0, 3, 6]),
        (causal() & documents([[0, 0, 1], [0, 1, 1]]), (3,), True, (-1, -1), [0, 2, 3, 4, 6], [0, 2, 3, 4, 6]),
        (chunks(2), (5,), False, (-1, -1), [0, 2, 4, 5], [0, 2, 4, 5]),
        # The last three queries over a cache: the first document has a query and three keys, aligned at the end.
        (causal() & documents([0, 0, 0, 1, 1]), (3, 5), True, (-1, -1), [0, 1, 3], [0, 3, 5]),
        # Keys that no query hears belong to a sequence without queries.
        (padding([1, 3]), (2, 3), False, (-1, -1), [0, 2, 2, 4], [0, 1, 3, 6]),
        (causal(), (2, 5, 1), True, (-1, -1), [0, 2, 2], [0, 3, 5]),
        # Left padding: two queries hear nothing, and no query hears two of the keys.
        (causal() & padding(torch.tensor([[0, 0, 1, 1]]).bool()), (4,), True, (-1, -1), [0, 2, 2, 4], [0, 0, 2, 4]),
        # Right padding, with queries that hear nothing where the keys are padded.
        (
            causal() & padding([2, 3]) & documents([[1, 1, 0], [1, 1, 1]]),
            (3,),
            True,
            (-1, -1),
            [0, 2, 3, 3, 6],
            [0, 2, 2, 3, 6],
        ),
        # Only the future: no query hears the first key, and the last query hears nothing.
        (~causal(), (3,), False, (0, -1), [0, 0, 2, 3], [0, 1, 3, 3]),
        (~full(), (2,), False, (-1, -1), [0, 2, 2], [0, 0, 2]),
    ],
    ids=str,
)
def test_packed_sequences(mask: Mask, sizes, is_causal, window_size, queries, keys):
    arguments = assert_exact(mask, *(sizes * 2 if len(sizes) == 1 else sizes))
    assert (arguments["causal"], arguments["window_size"]) == (is_causal, window_size)
    assert arguments["cu_seqlens_q"].tolist() == queries
    assert arguments["cu_seqlens_k"].tolist() == keys
    assert arguments["cu_seqlens_q"].dtype == arguments["cu_seqlens_k"].dtype == torch.int32
    assert arguments["max_seqlen_q"] == max(b - a for a, b in pairwise(queries))
    assert arguments["max_seqlen_k"] == max(b - a for a, b in pairwise(keys))


def test_a_batch_of_equal_items():
    arguments = assert_exact(causal() & documents([0, 0, 1]), 3, 3, batch=2)
    assert arguments["cu_seqlens_q"].tolist() == [0, 2, 3, 5, 6]
    with pytest.raises(RearviewError, match="batch: expected 2, the batch size of the mask, got 3"):
        to_flash(padding([1, 2]), 3, batch=3)


@pytest.mark.parametrize("seed", range(20))
def test_random_packings_are_exact(seed):
    make = torch.Generator().manual_seed(seed)
    ids = (torch.rand(2, 12, generator=make) < 0.3).cumsum(-1)
    back, q_len = (int(torch.randint(low, 12, (), generator=make)) for low in (2, 1))
    for band in (full(), causal(), window(back), window(back, ahead=3)):
        assert_exact(documents(ids) & band, q_len, 12)


@pytest.mark.parametrize(
    ("mask", "sizes", "reason"),
    [
        (
            causal() & padding([3, 5]),
            (5,),
            "padded keys can be left out only where padded queries hear nothing: & documents(real)",
        ),
        (causal() | prefix(2), (5,), "the rows are not one band (causal, window_size) over consecutive runs of keys"),
        (
            (causal() & window(2)) | prefix(1),
            (5,),
            "a query can hear one range of keys there, but query 3 hears 0..0 and 2..3 here",
        ),
        (
            causal() & documents([0, 1, 0]),
            (3,),
            "a query can hear one range of keys there, but query 2 hears 0..0 and 2..2 here",
        ),
        (per_head([causal(), full()]), (5,), "all heads share one mask there, but differ here"),
        (~window(1), (5,), "a query can hear one range of keys there, but query 1 hears 0..0 and 2..4 here"),
        # A query before the first key: FlashAttention itself would let it hear more.
        (window(2, ahead=3), (9, 2), "the rows are not one band (causal, window_size) over consecutive runs of keys"),
    ],
    ids=str,
)
def test_refusals(mask: Mask, sizes, reason):
    with pytest.raises(Unsupported) as caught:
        to_flash(mask, *sizes)
    first, *reasons, last = str(caught.value).splitlines()
    what = f"{mask!r} for {sizes[0]} queries and {sizes[-1]} keys"
    assert first == f"to_flash: FlashAttention cannot express {what}:"
    assert f"  - {reason}" in reasons
    assert last == "attend(mask=...) takes any mask."


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("left", [-1, 0, 2])
@pytest.mark.parametrize("right", [-1, 0, 1])
@pytest.mark.parametrize("sizes", [(5, 5), (3, 5)])
def test_from_flash(is_causal, left, right, sizes):
    mask = from_flash(causal=is_causal, window_size=(left, right))
    arguments: FlashArguments = {"causal": is_causal, "window_size": (left, right)}
    assert torch.equal(mask.to_bool(*sizes), flash_hears(arguments, 1, *sizes)[0])
    edges = torch.tensor([0, 2, 2, 5])
    packed = from_flash(causal=is_causal, window_size=(left, right), cu_seqlens=edges)
    arguments = {**arguments, "cu_seqlens_q": edges, "cu_seqlens_k": edges, "max_seqlen_q": 3, "max_seqlen_k": 3}
    assert torch.equal(packed.to_bool(5), flash_hears(arguments, 1, 5, 5)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window_size": (3,)}, r"window_size: expected \(left, right\), got \(3,\)"),
        ({"window_size": (-2, 0)}, r"window_size: expected an integer of at least -1, got -2"),
        ({"window_size": 3}, r"window_size: expected \(left, right\), got 3"),
        (
            {"cu_seqlens": [1, 3]},
            r"cu_seqlens: expected integers that start at 0 and rise to the total length, such as .*, got \[1, 3\]",
        ),
        ({"cu_seqlens": [0, 3, 2]}, r"rise to the total length, such as .*, got \[0, 3, 2\]"),
        ({"cu_seqlens": [0.0, 3.0]}, r"cu_seqlens: expected integers"),
        ({"cu_seqlens": [0]}, r"cu_seqlens: expected integers"),
        ({"cu_seqlens": 4}, r"cu_seqlens: expected integers"),
        ({"cu_seqlens": [0, 0]}, r"cu_seqlens: expected integers"),
    ],
)
def test_from_flash_refusals(arguments, message):
    with pytest.raises(RearviewError, match=message):
        from_flash(**arguments)
