"""Masks that hold their ranges: those that the caller has worked out, and those that a dense tensor turned out to be.

>>> from rearview import ranges
>>> ranges([0, 0, 1], [1, 2, 3]).to_bool(3).int().tolist()
[[1, 0, 0], [1, 1, 0], [0, 1, 1]]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import PRINTED_VALUES, as_data, described, is_readable, is_whole
from rearview.masks.frame import LARGEST_NUMBER, Frame
from rearview.masks.mask import Mask, family
from rearview.masks.spans import Spans

AXES = "[T], [T, ranges], [batch, T, ranges] or [batch, head, T, ranges]"


@family("ranges")
class ExplicitRanges(Mask):
    """`starts` and `ends`: int32 [batch or 1, heads or 1, rows, ranges]. Row n is the query at position n."""

    starts: Tensor
    ends: Tensor

    @property
    def batch(self) -> int | None:
        return self.starts.shape[0] if self.starts.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.starts.shape[1] if self.starts.shape[1] > 1 else None

    @property
    def own_length(self) -> int | None:
        return self.starts.shape[2]

    @property
    def _first_row(self) -> int:
        """The position of row 0."""
        return 0

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        items, heads, rows, slots = self.starts.shape
        row = query - self._first_row
        at = (batch if items > 1 else 0, head if heads > 1 else 0, row.clamp(0, rows - 1))
        starts, ends = (edge.to(key.device)[at] for edge in (self.starts, self.ends))
        heard = torch.zeros_like(key, dtype=torch.bool)
        # Range by range: a tensor of every pair and range would be needlessly large.
        for n in range(slots):
            heard = heard | ((key >= starts[..., n]) & (key < ends[..., n]))
        # A query before the first key (more queries than keys) has no row.
        return heard & (row >= 0)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        row = frame.query_positions(self.starts.device).flatten() - self._first_row
        known = (row >= 0).view(-1, 1)
        at = row.clamp(min=0).long()
        starts, ends = self.starts[:, :, at].to(device), (self.ends[:, :, at] * known).to(device)
        return Spans.of(starts, ends, q_len=frame.q_len, k_len=frame.k_len)

    def _check(self, frame: Frame) -> None:
        known = self.starts.shape[2]
        if known < frame.q_end:
            raise BadArgument(
                "ranges(starts, ends)",
                expected=f"a row for each of the {frame.q_end} query positions",
                got=f"{known} rows",
                advice="Row n holds the ranges of the query at position n; one step over a cache reads the last row.",
            )

    def __repr__(self) -> str:
        starts, ends = (edge[0, 0] if edge.shape[:2] == (1, 1) else edge for edge in (self.starts, self.ends))
        starts, ends = (edge[:, 0] if edge.ndim == 2 and edge.shape[1] == 1 else edge for edge in (starts, ends))
        if starts.numel() > PRINTED_VALUES or not is_readable(starts):
            return f"ranges(<{' x '.join(map(str, starts.shape))} ranges>)"
        return f"ranges({starts.tolist()}, {ends.tolist()})"


@family("dense_ranges")
class DenseRanges(ExplicitRanges):
    """A dense tensor of `columns` keys whose rows are a few ranges: it is kept as these ranges, and exact."""

    columns: int

    @property
    def own_length(self) -> int | None:
        return self.columns

    @property
    def _first_row(self) -> int:
        return self.columns - self.starts.shape[2]

    def _check(self, frame: Frame) -> None:
        check_rows(frame, rows=self.starts.shape[2], columns=self.columns)

    def __repr__(self) -> str:
        items, heads, rows, slots = self.starts.shape
        most = "1 range" if slots == 1 else f"at most {slots} ranges"
        return f"dense(<{dense_sizes((items, heads, rows, self.columns))} bool, {most} per row>)"


def check_rows(frame: Frame, *, rows: int, columns: int) -> None:
    """Raise where a dense tensor does not cover a frame; its last row is at the last column's position."""
    first = columns - rows
    if frame.k_len > columns or frame.q_start < first or frame.q_end > first + rows:
        raise BadArgument(
            "dense(tensor)",
            expected=f"queries at {frame.q_start}..{frame.q_end - 1} over {frame.k_len} keys",
            got=f"a tensor for queries at {first}..{first + rows - 1} over {columns} keys",
            advice="Rows are at the last positions of the columns; a [T, T] tensor serves every step up to T.",
        )


def dense_sizes(shape: Sequence[int]) -> str:
    """The axes of a dense tensor that matter, as they are printed.

    >>> dense_sizes((1, 1, 3, 4))
    '3 x 4'
    """
    return " x ".join(map(str, [size for size in shape if size > 1] or [1]))


@expression("ranges([0, 0, 1], [1, 2, 3])")
def ranges(starts: Sequence[object] | Tensor, ends: Sequence[object] | Tensor) -> Mask:
    """The explicit form: the query at position n hears the keys from `starts[n]` up to, not including, `ends[n]`.

    Both are integers of one shape: [T] for one range per query, and otherwise the ranges of a query are the last axis:
    [T, ranges], [batch, T, ranges] or [batch, head, T, ranges]; axes of size 1 broadcast, except T. Ranges may overlap,
    be empty (start >= end) and extend beyond the keys on either side, and there may be more rows than queries.

    >>> ranges([[0, 3], [0, 3], [0, 2], [3, 0]], [[2, 4], [2, 4], [1, 4], [4, 0]]).spans(4).rows()
    [[(0, 2), (3, 4)], [(0, 2), (3, 4)], [(0, 1), (2, 4)], [(3, 4)]]
    """
    argument, expected = "ranges(starts, ends)", f"integers {AXES}, at least one"
    edges = [as_data(values, argument, expected=expected) for values in (starts, ends)]
    for edge in edges:
        if edge.ndim not in (1, 2, 3, 4) or not is_whole(edge) or edge.numel() == 0:
            advice = "One range per query and batch item is starts[..., None]." if is_whole(edge) else ""
            raise BadArgument(argument, expected=expected, got=described(edge), advice=advice)
    if edges[0].shape != edges[1].shape:
        got = f"{list(edges[0].shape)} and {list(edges[1].shape)}"
        raise BadArgument(argument, expected="two tensors of one shape", got=got)
    if edges[0].device != edges[1].device:
        got = f"{edges[0].device} and {edges[1].device}"
        raise BadArgument(argument, expected="two tensors on one device", got=got)
    # Edges beyond the largest position mean "to the end", and must fit int32.
    edges = [edge.long().clamp(0, LARGEST_NUMBER).int() for edge in edges]
    edges = [edge.unsqueeze(-1) if edge.ndim == 1 else edge for edge in edges]
    # [batch, T, ranges] has no head axis.
    edges = [edge.unsqueeze(1) if edge.ndim == 3 else edge[(None,) * (4 - edge.ndim)] for edge in edges]
    return ExplicitRanges(*edges)
