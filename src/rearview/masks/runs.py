"""Runs of True in the rows of a bool tensor: how many there are, and where each starts and ends.

    >>> runs_of(torch.tensor([[[[True, True, False, True]]]]))
    (tensor([[[[0, 3]]]], dtype=torch.int32), tensor([[[[2, 4]]]], dtype=torch.int32))

A tensor is read a few rows at a time, so that beyond it there is memory for the runs only.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from rearview.masks.grouping import ranks

# Rows of at most this many ranges always count as few: kernels on ranges were measured to be faster with them than with
# a dense mask (DESIGN.md, Spans).
FEW_RANGES = 32
# More than that are few where they take at most an eighth of the bytes of a bool tensor (8 bytes per range), and 1 GiB.
POSITIONS_PER_RANGE = 64
MOST_RANGES = 2**27

PAIRS_PER_STRIP = 2**20


def are_few(ranges: int, length: int) -> bool:
    """Whether `ranges` per row are worth more than the dense form, for rows of `length` keys.

    >>> are_few(32, 100), are_few(33, 100), are_few(100, 8_000), are_few(4_000, 8_000)
    (True, False, True, False)
    """
    return ranges <= FEW_RANGES or (ranges * POSITIONS_PER_RANGE <= length and ranges * length <= MOST_RANGES)


def has_few_runs(visible: Tensor) -> bool:
    """Whether each row of a bool tensor [batch, head, row, column] has few runs. Stops at the first that has not.

    The tensor is there already, so only speed speaks for ranges.
    """
    return all(int(_opens(strip).sum(-1).max()) <= FEW_RANGES for _, strip in _strips(visible))


def most_runs(visible: Tensor) -> int:
    """The runs in the row of a bool tensor [batch, head, row, column] that has the most of them."""
    return max([int(_opens(strip).sum(-1).max()) for _, strip in _strips(visible)], default=0)


def runs_of(visible: Tensor) -> tuple[Tensor, Tensor]:
    """Starts and ends of the runs in each row: int32 [batch, head, row, run]; missing runs are (columns, columns)."""
    columns = visible.shape[-1]
    shape = (*visible.shape[:-1], max(1, most_runs(visible)))
    starts = torch.full(shape, columns, dtype=torch.int32, device=visible.device)
    ends = starts.clone()
    for place, strip in _strips(visible):
        opens, closes = _opens(strip), strip.clone()
        closes[:, :-1] &= ~strip[:, 1:]
        row, start = opens.nonzero(as_tuple=True)
        # In the order of rows and columns, the n-th start of a row belongs to its n-th end.
        _, last = closes.nonzero(as_tuple=True)
        slot = ranks(row, opens.sum(-1))
        starts[place][row, slot] = start.int()
        ends[place][row, slot] = last.int() + 1
    return starts, ends


def _strips(visible: Tensor) -> Iterator[tuple[tuple[int, int, slice], Tensor]]:
    batch, heads, rows, columns = visible.shape
    height = max(1, PAIRS_PER_STRIP // max(1, columns))
    for item in range(batch):
        for head in range(heads):
            for first in range(0, rows, height):
                place = (item, head, slice(first, first + height))
                yield place, visible[place]


def _opens(rows: Tensor) -> Tensor:
    """True where a run starts."""
    opens = rows.clone()
    opens[:, 1:] &= ~rows[:, :-1]
    return opens
