"""Windows in two and three dimensions: images, video, any grid whose cells are laid out row by row.

>>> from rearview import grid_window
>>> grid_window([3, 4], 3).spans(12).rows()[5]     # row 1, column 1: three cells of each of three rows
[(0, 3), (4, 7), (8, 11)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import Any, Self

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import true_or_false
from rearview.masks.frame import LARGEST_NUMBER, Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.runs import are_few
from rearview.masks.spans import Spans


@family("grid_window")
class GridWindow(Mask):
    """`shape` and `size` per axis; the cells are at `start` and the positions after it."""

    is_arithmetic = True
    shape: tuple[int, ...]
    size: tuple[int, ...]
    start: int
    inside: bool

    @property
    def has_ranges(self) -> bool:
        rows = [min(size, cells) for size, cells in zip(self.size[:-1], self.shape[:-1], strict=True)]
        return are_few(math.prod(rows), math.prod(self.shape))

    @property
    def own_length(self) -> int | None:
        return self.start + math.prod(self.shape)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        of_query, of_key = self._cells(query), self._cells(key)
        windows = self._windows(of_query)
        near = [(cell >= low) & (cell < high) for (low, high), cell in zip(windows, of_key, strict=True)]
        return reduce(and_, near, self._is_cell(query) & self._is_cell(key))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        windows = self._windows(self._cells(position))
        # One range for each neighbouring row of cells: the last axis is the range, the others number the rows.
        first = torch.zeros_like(position)
        there = self._is_cell(position)
        for (low, high), cells, size in zip(windows[:-1], self.shape[:-1], self.size[:-1], strict=True):
            step = torch.arange(min(size, cells), dtype=torch.int32, device=device)
            cell = low + step
            there = (there.unsqueeze(-1) & (cell < high).unsqueeze(-2)).flatten(-2)
            first = (first.unsqueeze(-1) * cells + cell.unsqueeze(-2)).flatten(-2)
        low, high = windows[-1]
        first = self.start + first * self.shape[-1]
        starts, ends = first + low, torch.where(there, first + high, 0)
        return Spans.of(starts, ends, q_len=frame.q_len, k_len=frame.k_len)

    def _is_cell(self, position: Tensor) -> Tensor:
        return (position >= self.start) & (position < self.start + math.prod(self.shape))

    def _cells(self, position: Tensor) -> list[Tensor]:
        """The coordinates of a position, which mean nothing outside the grid."""
        rest = position - self.start
        found: list[Tensor] = []
        for cells in reversed(self.shape):
            found.append(rest % cells)
            rest = torch.div(rest, cells, rounding_mode="floor")
        return found[::-1]

    def _windows(self, cell: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """The cells [low, high) that are near on each axis."""
        found = []
        for place, cells, size in zip(cell, self.shape, self.size, strict=True):
            low = place - size // 2
            if self.inside:
                low = low.clamp(min=0, max=max(0, cells - size))
            found.append((low.clamp(min=0), (low + size).clamp(max=cells)))
        return found

    def _flatten(self) -> tuple[object, ...]:
        return (self.start, int(self.inside), *self.shape, *self.size)

    @classmethod
    def _unflatten(cls, values: Sequence[Any]) -> Self:
        start, inside, *both = values
        axes = len(both) // 2
        return cls(tuple(both[:axes]), tuple(both[axes:]), start, bool(inside))

    def __repr__(self) -> str:
        start = f", start={self.start}" if self.start else ""
        inside = ", inside=True" if self.inside else ""
        return f"grid_window({list(self.shape)}, {list(self.size)}{start}{inside})"


@expression("grid_window([4, 6], 3)")
def grid_window(shape: Sequence[int], size: int | Sequence[int], *, start: int = 0, inside: bool = False) -> Mask:
    """The cells near a cell of a grid, itself included: `size` cells along each axis, as centred as they can be.

    `shape` is [rows, columns], or [frames, rows, columns] and so on; cell by cell, row by row, the grid takes the
    positions from `start` on. Other positions, such as text around an image, hear nothing and are not heard. At the
    edges of the grid the window is cut off; with `inside`, it is moved inside the grid instead, so that every cell
    hears equally many cells (neighbourhood attention, NATTEN). An even size reaches one cell further back than ahead.

    >>> grid_window([2, 3], 3).spans(6).rows()[0], grid_window([2, 3], [1, 2], inside=True).spans(6).rows()[0]
    ([(0, 2), (3, 5)], [(0, 2)])
    """
    axes = _whole_numbers(shape, "grid_window(shape)")
    sizes = _whole_numbers(size, "grid_window(size)") if isinstance(size, Sequence) else None
    if sizes is None:
        sizes = (whole_number(size, "grid_window(size)", at_least=1),) * len(axes)
    if len(sizes) != len(axes):
        expected = f"one size, or one for each of the {len(axes)} axes of the grid"
        raise BadArgument("grid_window(size)", expected=expected, got=repr(size))
    first = whole_number(start, "start", at_least=0)
    if first + math.prod(axes) > LARGEST_NUMBER:
        raise BadArgument("grid_window(shape)", expected="fewer than 2**30 positions", got=repr(shape))
    return GridWindow(axes, sizes, first, true_or_false(inside, "inside"))


def _whole_numbers(values: Sequence[int], argument: str) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or not values:
        raise BadArgument(argument, expected="integers, one for each axis, such as [4, 6]", got=repr(values))
    return tuple(whole_number(value, argument, at_least=1) for value in values)
