"""Masks that divide a row into sequences of their own, with positions of their own: documents, and paths of a tree.

    >>> from rearview import along, documents, window
    >>> along(documents([0, 0, 0, 1, 1]), window(2)).spans(5).rows()
    [[(0, 1)], [(0, 2)], [(1, 3)], [(3, 4)], [(3, 5)]]

A query hears the keys of its own sequence. `along` narrows that by a mask that counts positions along the sequence.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rearview.drawing.cells import counted
from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.data import is_readable
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask, family
from rearview.masks.operators import Joined
from rearview.masks.spans import Spans

STRIP = 2**14


@family()
class Paths(Mask):
    """Each position belongs to a sequence. In the ranges of a query, positions along its sequence rise by 1.

    `data`: int64 [T] or [batch, T].
    """

    data: Tensor
    argument: ClassVar[str]
    """The constructor and its argument, as an error writes them."""
    entry: ClassVar[str]
    """What the data hold for each position."""

    @property
    def positions(self) -> Tensor:
        """The position of each token in its own document, or on its own path: int64, of the shape of the data.

        This is what rotary and learned positions count: `model(tokens, mask=mask, positions=mask.positions)`.
        """
        raise TypeError(f"{type(self).__name__} must define positions")

    def along(self, mask: Mask) -> Mask:
        """See `along`."""
        return Along((self, mask))

    @property
    def batch(self) -> int | None:
        return None if self.data.ndim == 1 else self.data.shape[0]

    @property
    def own_length(self) -> int | None:
        return self.data.shape[-1]

    def _rows(self, frame: Frame) -> tuple[Tensor, Tensor]:
        """The positions of a frame's queries, at least 0, and which of them there are: int64 and bool [q_len].

        Queries before the first key (more queries than keys) belong to no sequence.
        """
        position = frame.query_positions(self.data.device).flatten()
        return position.clamp(min=0).long(), position >= 0

    def _check(self, frame: Frame) -> None:
        known, needed = self.data.shape[-1], max(frame.k_len, frame.q_end)
        if known < needed:
            article = "an" if self.entry[0] in "aeiou" else "a"
            raise BadArgument(
                self.argument,
                expected=f"{article} {self.entry} for each of the {needed} positions",
                got=counted(known, self.entry, f"{self.entry}s"),
                advice=f"Give one {self.entry} per position of the whole sequence, the cached positions included.",
            )


@family("along")
class Along(Joined):
    """The parts are `Paths`, and the mask that is asked in the positions along them."""

    @property
    def _paths(self) -> Paths:
        return self.parts[0]  # pyright: ignore[reportReturnType]

    @property
    def own_length(self) -> int | None:
        return self._paths.own_length

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        paths, mask = self.parts
        positions = self._paths.positions.to(key.device)
        last = positions.shape[-1] - 1

        def position(index: Tensor) -> Tensor:
            index = index.clamp(0, last)
            return positions[index] if positions.ndim == 1 else positions[batch, index]

        return paths.visible(batch, head, query, key) & mask.visible(batch, head, position(query), position(key))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        paths, mask = self._paths, self.parts[1]
        outer, inner = paths.spans_in(frame, device), mask.spans_in(self._frame_along(), device)
        positions = paths.positions.to(device, torch.int32).view(-1, paths.positions.shape[-1])
        place = positions[:, paths._rows(frame)[0].to(device)]
        # A strip of queries at a time: what is made below has a slot for each pair of an outer and an inner range.
        strips = [self._strip(outer, inner, positions, place, first) for first in range(0, max(1, frame.q_len), STRIP)]
        return Spans.stacked(strips, dim=2, q_len=frame.q_len, k_len=frame.k_len)

    def _strip(self, outer: Spans, inner: Spans, positions: Tensor, place: Tensor, first: int) -> Spans:
        """The queries from `first` on; `place` are their positions along their sequences."""
        rows = slice(first, first + STRIP)
        place = place[:, rows]
        starts, ends = (_rows_at(edge, place.long()).unsqueeze(-2) for edge in (inner.starts, inner.ends))
        low, high = (edge[:, :, rows] for edge in (outer.starts, outer.ends))
        # Along the sequence, a range begins at the position of its first key; a missing range begins anywhere.
        item = torch.arange(len(positions), device=positions.device).view(-1, 1, 1, 1)
        moved = low - positions[item, low.long().clamp(max=positions.shape[-1] - 1)]
        starts = torch.maximum(low.unsqueeze(-1), starts + moved.unsqueeze(-1)).flatten(-2)
        ends = torch.minimum(high.unsqueeze(-1), ends + moved.unsqueeze(-1)).flatten(-2)
        return Spans.of(starts, ends, q_len=place.shape[1], k_len=outer.k_len)

    def _frame_along(self) -> Frame:
        """The frame of the longest sequence."""
        return Frame.of(self._derive("longest", lambda: int(self._paths.positions.max()) + 1))

    def _check(self, frame: Frame) -> None:
        paths, mask = self.parts
        paths._check(frame)
        # What only counts positions has no data that could be too short, and a traced graph cannot read the length.
        if not all(part.is_arithmetic for part in mask.walk()) and is_readable(self._paths.data):
            mask._check(self._frame_along())

    def __repr__(self) -> str:
        paths, mask = self.parts
        return f"along({paths!r}, {mask!r})"


def _rows_at(edge: Tensor, rows: Tensor) -> Tensor:
    """The rows of `edge` [batch or 1, head or 1, row, range] at the indices `rows` [batch or 1, query]."""
    items = max(len(edge), len(rows))
    edge = edge.expand(items, -1, -1, -1)
    if edge.shape[2] == 1:
        return edge
    at = rows.expand(items, -1)[:, None, :, None].expand(-1, edge.shape[1], -1, edge.shape[3])
    return edge.gather(2, at)


@expression("along(documents([0, 0, 1, 1]), window(2))")
def along(paths: Mask, mask: Mask) -> Mask:
    """The mask in each document, or on each path of a tree, as if that were alone in its row.

    A query hears the keys of its own sequence for which `mask` holds at their positions in that sequence. So windows,
    chunks and prefixes count from the first token of the document, and along the branch of the tree.

    >>> from rearview import tree, window
    >>> along(tree([-1, 0, 1, 1, 3]), window(2)).spans(5).rows()
    [[(0, 1)], [(0, 2)], [(1, 3)], [(1, 2), (3, 4)], [(3, 5)]]
    """
    if not isinstance(paths, Paths):
        expected = "documents(ids), tree(parents) or shared_prefix(...)"
        raise BadArgument("along(paths)", expected=expected, got=repr(paths))
    if not isinstance(mask, Mask):
        raise BadArgument("along(mask)", expected="a mask, such as window(2)", got=repr(mask))
    return paths.along(mask)
