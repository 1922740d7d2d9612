"""Masks to and from FlashMask's `startend_row_indices`: for each key, the rows that do not hear it.

    >>> from rearview import causal, documents
    >>> found = to_flashmask(causal() & documents([0, 0, 1, 1, 1]), 5)
    >>> found["causal"], found["startend_row_indices"].flatten().tolist()
    (True, [2, 2, 5, 5, 5])

For `paddle.nn.functional.flashmask_attention`. Rows are counted from the first query, and `causal` is aligned at the
bottom right. Per key there are 1, 2 or 4 numbers:

- causal, 1: no row from `start` on hears it; causal, 2: no row of `[start, end)` does.
- not causal, 2: no row from `start` on and none before `end`; 4: none of `[start, end)` and none of a second range.
"""

from __future__ import annotations

from typing import TypedDict

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_device, check_readable, described, true_or_false
from rearview.masks.exchange.batch import batch_of
from rearview.masks.exchange.rows import ranged, rows_as_mask
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans


class FlashMaskArguments(TypedDict):
    """Arguments for `flashmask_attention(query, key, value, **arguments)`."""

    startend_row_indices: Tensor
    causal: bool


def to_flashmask(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    batch: int | None = None,
    device: torch.device | str | None = None,
) -> FlashMaskArguments:
    """FlashMask's arguments that mean exactly this mask, or `Unsupported`.

    `startend_row_indices` is int32 [batch, heads or 1, k_len, 1, 2 or 4]. FlashMask has one mask per key head: where
    the mask differs by head, query heads that share a key head must have the same one.

    >>> from rearview import window
    >>> to_flashmask(window(2), 4)["startend_row_indices"].flatten().tolist()
    [2, 3, 4, 4]
    """
    frame = Frame.of(whole_number(q_len, "q_len", at_least=1), k_len, q_start)
    columns = ranged(mask, frame).columns
    found = _looking_back(columns) or _both_ways(columns)
    if found is None:
        silent = ~columns
        item, head, key = torch.nonzero(silent.starts[..., 2] < frame.q_len)[0].tolist()
        rows = ", ".join(f"{start}..{end - 1}" for start, end in silent.rows(item, head)[key])
        raise Unsupported(
            f"to_flashmask: FlashMask cannot express {mask!r} for {frame.q_len} queries and {frame.k_len} keys",
            [f"it hides a key from two ranges of rows at most, but key {key} is hidden from rows {rows} here"],
            advice="attend(mask=...) takes any mask.",
        )
    indices, is_causal = found
    indices = indices.expand(batch_of(mask, batch), -1, -1, -1).contiguous()
    return {"startend_row_indices": indices.to(as_device(device), torch.int32), "causal": is_causal}


def _looking_back(columns: Spans) -> tuple[Tensor, bool] | None:
    """The numbers beside `causal`, which itself hides each key from the rows before the diagonal."""
    keys, rows = columns.q_len, columns.k_len
    diagonal = (torch.arange(keys) - (keys - rows)).clamp(0, rows).int().view(1, 1, -1, 1)
    from_diagonal = Spans.of(diagonal, torch.full_like(diagonal, rows), q_len=keys, k_len=rows)
    silent = ~columns & from_diagonal
    if bool((columns.starts[..., :1] < diagonal).any()) or silent.most_ranges > 1:
        return None
    starts, ends = silent.starts, silent.ends
    return (starts if bool((ends == rows).all()) else torch.cat([starts, ends], -1)), True


def _both_ways(columns: Spans) -> tuple[Tensor, bool] | None:
    silent, rows = ~columns, columns.k_len
    if silent.most_ranges > 2:
        return None
    first, last = (silent.starts[..., :1], silent.ends[..., :1]), (silent.starts[..., 1:], silent.ends[..., 1:])
    missing = torch.full_like(first[0], rows)
    last = last if silent.most_ranges == 2 else (missing, missing)
    # A single range at the top is the upper one, and any other the lower one.
    moves = (last[0] == rows) & (first[0] > 0)
    lower = [torch.where(moves, one, other) for one, other in zip(first, last, strict=True)]
    upper = [torch.where(moves, 0, edge) for edge in first]
    # A key that every row hears has no range at all.
    upper = [edge.masked_fill(upper[0] == rows, 0) for edge in upper]
    if bool(((lower[1] == rows) & (upper[0] == 0)).all()):
        return torch.cat([lower[0], upper[1]], -1), False
    return torch.cat([*lower, *upper], -1), False


def from_flashmask(startend_row_indices: Tensor, *, causal: bool, q_len: int | None = None) -> Mask:
    """The mask that FlashMask applies for these arguments; `q_len` is the number of keys unless given.

    >>> from_flashmask(torch.tensor([2, 2, 4, 4]).view(1, 1, 4, 1), causal=True).spans(4).rows()
    [[(0, 1)], [(0, 2)], [(2, 3)], [(2, 4)]]
    """
    sizes = (1, 2) if true_or_false(causal, "causal") else (2, 4)
    known = isinstance(startend_row_indices, Tensor) and startend_row_indices.ndim == 4
    whole = known and startend_row_indices.dtype in (torch.int32, torch.int64)
    if not whole or startend_row_indices.shape[-1] not in sizes or startend_row_indices.numel() == 0:
        raise BadArgument(
            "startend_row_indices",
            expected=f"int32 [batch, head, key, {sizes[0]} or {sizes[1]}] for causal={causal}",
            got=described(startend_row_indices),
        )
    check_readable(startend_row_indices, "startend_row_indices", expected="row indices")
    keys = startend_row_indices.shape[2]
    rows = keys if q_len is None else whole_number(q_len, "q_len", at_least=1)
    numbers = [number.unsqueeze(-1) for number in startend_row_indices.cpu().unbind(-1)]
    nothing, everything = torch.zeros_like(numbers[0]), torch.full_like(numbers[0], rows)
    if causal:
        diagonal = (torch.arange(keys) - (keys - rows)).clamp(min=0).view(1, 1, -1, 1)
        hidden = [(numbers[0], numbers[1] if len(numbers) == 2 else everything)]
        hidden.append((nothing, diagonal.expand_as(nothing)))
    elif len(numbers) == 2:
        hidden = [(numbers[0], everything), (nothing, numbers[1])]
    else:
        hidden = [(numbers[0], numbers[1]), (numbers[2], numbers[3])]
    starts, ends = (torch.cat(edges, -1) for edges in zip(*hidden, strict=True))
    heard = (~Spans.of(starts, ends, q_len=keys, k_len=rows)).columns
    return rows_as_mask(heard)
