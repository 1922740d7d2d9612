"""Bins of positions, for a map of fixed size: how wide they are, and how two of them become one.

>>> width_for(1000, map_size=64), width_for(1000, map_size=64, at_least=10)
(16, 20)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.masks import Frame


def width_for(length: int, *, map_size: int, at_least: int | None = None) -> int:
    """Positions a bin, so that at most `map_size` bins hold `length`; `at_least`, doubled until it does, if given."""
    if at_least is None:
        return max(1, -(-length // map_size))
    width = at_least
    while width * map_size < length:
        width *= 2
    return width


def merged(sums: Tensor, times: int, axes: tuple[int, ...]) -> Tensor:
    """Every `times` neighbouring bins along `axes` (negative) as one: their sum.

    >>> merged(torch.tensor([1.0, 2.0, 4.0]), 2, (-1,)).tolist()
    [3.0, 4.0]
    """
    for axis in axes:
        size = sums.shape[axis]
        pad = [0, 0] * (-axis - 1) + [0, -size % times]
        sums = F.pad(sums, pad).unflatten(axis, (-1, times)).sum(axis)
    return sums


def pooled_columns(sums: Tensor, first: int, width: int) -> tuple[Tensor, int]:
    """Columns at positions first, first + 1, ... summed by bin; and the number of the first bin.

    >>> pooled_columns(torch.ones(4), first=3, width=2)    # positions 3 to 6
    (tensor([1., 2., 1.]), 1)
    """
    bin_number, before = divmod(first, width)
    return merged(F.pad(sums, (before, 0)) if before else sums, width, (-1,)), bin_number


def pooled_rows(weights: Tensor, first: int, width: int) -> Tensor:
    """Rows at positions first, first + 1, ... summed by bin: [.., rows, columns] -> [.., bins, columns]."""
    rows = weights.shape[-2]
    if width == 1:
        return weights
    # Whole bins are one sum; a part of a bin at either end is a sum of its own.
    head = min(rows, -first % width)
    tail = head + (rows - head) // width * width
    parts = [weights[..., :head, :].sum(-2, keepdim=True)] if head else []
    if tail > head:
        parts.append(weights[..., head:tail, :].unflatten(-2, (-1, width)).sum(-2))
    if tail < rows:
        parts.append(weights[..., tail:, :].sum(-2, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def map_shape(frame: Frame, width: int) -> tuple[int, int]:
    """Bins of queries, and of keys."""
    return -(-(frame.q_end - first_position(frame)) // width), -(-frame.k_len // width)


def first_position(frame: Frame) -> int:
    """Where the bins of queries begin: at 0, or at the first query where more queries than keys push it before 0."""
    return min(0, frame.q_start)
