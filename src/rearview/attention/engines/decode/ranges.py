"""What the kernels read of a mask: a table of ranges on the device, or one range that the host knows.

>>> import torch
>>> from rearview import causal, window
>>> from rearview.masks import Frame
>>> table = RangeTable.at_positions(causal() & window(3), 8, torch.device("cpu"))
>>> table.starts.shape, table.first_row, int(table.ends[0, 0, 5, 0])
(torch.Size([1, 1, 8, 1]), 0, 6)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.masks import Frame, Mask, Spans

# Tables of every position are made for at least so many, so that a growing cache needs few of them.
FEWEST_POSITIONS = 4096


@dataclass(frozen=True, eq=False)
class RangeTable:
    """Ranges int32 [batch or 1, heads or 1, rows, range]; the query at position p has row p + `first_row`."""

    starts: Tensor
    ends: Tensor
    first_row: int
    strides: tuple[int, int, int]
    # It serves any frame with up to so many positions; 0 if it is for one frame.
    serves_positions: int = 0

    @classmethod
    def of(cls, spans: Spans, first_row: int, *, serves_positions: int = 0) -> RangeTable:
        starts, ends = (edge.contiguous() for edge in torch.broadcast_tensors(spans.starts, spans.ends))
        item, head, row = (
            0 if size == 1 else stride for size, stride in zip(starts.shape[:3], starts.stride()[:3], strict=True)
        )
        return cls(starts, ends, first_row, (item, head, row), serves_positions)

    @classmethod
    def at_positions(cls, mask: Mask, positions: int, device: torch.device) -> RangeTable:
        """The ranges of the queries at every position: what a kernel needs that reads the position on the device."""
        return cls.of(mask.spans_in(Frame(positions, positions, 0), device), 0)

    @property
    def ranges(self) -> int:
        return self.starts.shape[3]


def table_for(mask: Mask, frame: Frame, device: torch.device, *, every_position: bool) -> RangeTable:
    """The table for a frame; with `every_position`, for queries anywhere in it."""
    if every_position:
        return RangeTable.at_positions(mask, frame.k_len, device)
    if 0 <= frame.q_start < frame.k_len and reads_positions_alone(mask):
        # The table serves the next steps of a growing cache too.
        positions = max(FEWEST_POSITIONS, 1 << (max(frame.k_len, frame.q_end) - 1).bit_length())
        spans = mask.spans_in(Frame(positions, positions, 0), device)
        return RangeTable.of(spans, 0, serves_positions=positions)
    return RangeTable.of(mask.spans_in(frame, device), -frame.q_start)


def reads_positions_alone(mask: Mask) -> bool:
    """Whether the mask has no data, so that it says the same about a position whatever the number of keys is."""
    return mask._derive("positions alone", lambda: all(part.is_arithmetic for part in mask.walk()))
