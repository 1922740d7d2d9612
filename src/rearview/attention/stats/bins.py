"""Bins of positions for a map of fixed size: their width, sums over them, and merging them.

>>> width_for(1000, map_size=64), width_for(1000, map_size=64, at_least=10)
(16, 20)
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.masks import Frame


def width_for(length: int, *, map_size: int, at_least: int | None = None) -> int:
    """The number of positions per bin such that `map_size` bins hold `length`: the smallest, or `at_least` doubled."""
    if at_least is None:
        return max(1, -(-length // map_size))
    width = at_least
    while width * map_size < length:
        width *= 2
    return width


def merged(sums: Tensor, times: int, axes: tuple[int, ...]) -> Tensor:
    """Sum every `times` neighbouring bins along `axes` (negative).

    >>> merged(torch.tensor([1.0, 2.0, 4.0]), 2, (-1,)).tolist()
    [3.0, 4.0]
    """
    for axis in axes:
        size = sums.shape[axis]
        pad = [0, 0] * (-axis - 1) + [0, -size % times]
        sums = F.pad(sums, pad).unflatten(axis, (-1, times)).sum(axis)
    return sums


def pooled_columns(sums: Tensor, first: int, width: int) -> tuple[Tensor, int]:
    """Sum columns at positions first, first + 1, ... by bin; also the index of the first bin.

    >>> pooled_columns(torch.ones(4), first=3, width=2)    # positions 3 to 6
    (tensor([1., 2., 1.]), 1)
    """
    bin_number, before = divmod(first, width)
    return merged(F.pad(sums, (before, 0)) if before else sums, width, (-1,)), bin_number


def pooled_rows(weights: Tensor, first: int, width: int) -> Tensor:
    """Sum rows at positions first, first + 1, ... by bin: [.., rows, columns] -> [.., bins, columns]."""
    rows = weights.shape[-2]
    if width == 1:
        return weights
    # Whole bins are summed at once, and incomplete bins at either end separately.
    head = min(rows, -first % width)
    tail = head + (rows - head) // width * width
    parts = [weights[..., :head, :].sum(-2, keepdim=True)] if head else []
    if tail > head:
        parts.append(weights[..., head:tail, :].unflatten(-2, (-1, width)).sum(-2))
    if tail < rows:
        parts.append(weights[..., tail:, :].sum(-2, keepdim=True))
    return parts[0] if len(parts) == 1 else torch.cat(parts, -2)


def map_shape(frame: Frame, width: int) -> tuple[int, int]:
    """The number of bins of queries, and of keys."""
    return -(-(frame.q_end - first_position(frame)) // width), -(-frame.k_len // width)


def first_position(frame: Frame) -> int:
    """The position where the bins of queries start: 0, or that of the first query if it is negative."""
    return min(0, frame.q_start)
