"""Masks to and from `cu_seqlens`: the edges of packed sequences, as the varlen functions of many libraries take them.

>>> from rearview.masks.exchange import from_cu_seqlens, to_cu_seqlens
>>> mask = from_cu_seqlens([0, 2, 5], causal=True)
>>> mask, to_cu_seqlens(mask, 5, causal=True).tolist()
(causal() & documents([0, 0, 1, 1, 1]), [0, 2, 5])
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_device, true_or_false
from rearview.masks.exchange.batch import batch_of
from rearview.masks.exchange.flash import ADVICE, from_flash, more_than_one_range
from rearview.masks.exchange.rows import ranged
from rearview.masks.exchange.sequences import RowRanges
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask


def from_cu_seqlens(cu_seqlens: Sequence[int] | Tensor, *, causal: bool = False) -> Mask:
    """The mask of packed sequences that end where the next begins; with `causal`, each looks back only.

    >>> from_cu_seqlens([0, 1, 3])
    documents([0, 1, 1])
    """
    if cu_seqlens is None:
        raise BadArgument("cu_seqlens", expected="the edges of the sequences, such as [0, 3, 5]", got="None")
    return from_flash(causal=causal, cu_seqlens=cu_seqlens)


def to_cu_seqlens(
    mask: Mask,
    length: int,
    *,
    causal: bool = False,
    batch: int | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The edges of the sequences which, each full or with `causal`, mean exactly this mask: int32 [sequences + 1].

    The whole batch is laid out as one row of `batch * length` tokens.

    >>> from rearview import window
    >>> to_cu_seqlens(window(2), 4)
    Traceback (most recent call last):
        ...
    rearview.errors.Unsupported: to_cu_seqlens(causal=False): packed sequences alone do not express window(2):
      - query 1 hears the keys 0..1, and as a part of its sequence it would hear 1..1
    attend(mask=...) takes any mask.
    """
    causal = true_or_false(causal, "causal")
    spans, items = ranged(mask, Frame.of(length)), batch_of(mask, batch)
    reasons = more_than_one_range(spans)
    if not reasons:
        rows = RowRanges.of(spans, batch=items)
        total = torch.tensor([items * length])
        edges = torch.unique(torch.cat([rows.start[rows.heard], torch.arange(items) * length, total]))
        reasons = _differences(rows, edges, causal=causal)
        if not reasons:
            return edges.to(as_device(device), torch.int32)
    what = f"to_cu_seqlens(causal={causal}): packed sequences alone do not express {mask!r}"
    raise Unsupported(what, reasons, advice=ADVICE)


def _differences(rows: RowRanges, edges: Tensor, *, causal: bool) -> list[str]:
    """The first query that hears something else than its sequence, as a reason; nothing where there is none."""
    query = torch.arange(len(rows.start))
    sequence = torch.searchsorted(edges, query, right=True)
    first, last = edges[sequence - 1], query + 1 if causal else edges[sequence]
    differs = (rows.start != first) | (rows.end != last) | ~rows.heard
    if not bool(differs.any()):
        return []
    at = int(differs.nonzero()[0])
    heard = f"the keys {int(rows.start[at])}..{int(rows.end[at]) - 1}" if rows.heard[at] else "nothing"
    would = f"{int(first[at])}..{int(last[at]) - 1}"
    return [f"query {at} hears {heard}, and as a part of its sequence it would hear {would}"]
