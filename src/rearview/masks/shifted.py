"""A mask in the positions of the whole sequence, for a choice of heads.

    >>> from rearview import causal
    >>> shifted(causal(), queries=2, keys=2, heads=None).to_bool(1, 4).int().tolist()
    [[0, 0, 1, 1]]

One call of a layer knows its own queries and keys only: a sliding cache has dropped the first keys, and cross attention
counts its queries from 0 at every step. In the sequence they are at later positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.masks.frame import Frame
from rearview.masks.mask import Mask, family
from rearview.masks.operators import Wrapped
from rearview.masks.spans import Spans


@family()
class Shifted(Wrapped):
    """`part` moved by `queries` and `keys` positions; head n of it is head `chosen[n]` of `part`."""

    queries: int
    keys: int
    chosen: tuple[int, ...] | None

    @property
    def heads(self) -> int | None:
        return self.part.heads if self.chosen is None else len(self.chosen)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if self.chosen is not None:
            head = torch.tensor(self.chosen, device=head.device)[head]
        inside = self.part.visible(batch, head, query - self.queries, (key - self.keys).clamp(min=0))
        return inside & (key >= self.keys)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        spans = self.part.spans_in(self._frame_of_part(frame), device)
        edges = [edge + self.keys for edge in (spans.starts, spans.ends)]
        if self.chosen is not None:
            edges = [edge[:, list(self.chosen)] if edge.shape[1] > 1 else edge for edge in edges]
        return Spans.of(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def _frame_of_part(self, frame: Frame) -> Frame:
        return Frame(frame.q_len, frame.k_len - self.keys, frame.q_start - self.queries)

    def __repr__(self) -> str:
        return f"shifted({self.part!r}, queries={self.queries}, keys={self.keys}, heads={self.chosen})"


def shifted(mask: Mask, *, queries: int, keys: int, heads: tuple[int, ...] | None) -> Mask:
    """The mask with its queries and keys moved by this many positions; the mask itself where nothing changes.

    `heads` are the heads to keep, None for all.
    """
    chosen = heads if mask.heads is not None else None
    return mask if not (queries or keys or chosen is not None) else Shifted(mask, queries, keys, chosen)
