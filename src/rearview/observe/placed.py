"""A mask in the positions of the whole sequence, for the heads that are watched.

    >>> from rearview import causal
    >>> placed(causal(), queries=2, keys=2, heads=None).to_bool(1, 4).int().tolist()
    [[0, 0, 1, 1]]

One call of a layer knows its own queries and keys: a cache that slides has dropped the first keys, and cross attention
counts its queries from 0 at every step. In the sequence they stand further on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.masks import Frame, Mask, Spans


class Placed(Mask):
    """`part` moved by `queries` and `keys` positions; head n of it is head `heads[n]` of `part`."""

    __slots__ = ("chosen", "keys", "part", "queries")
    part: Mask
    queries: int
    keys: int
    chosen: tuple[int, ...] | None

    def __init__(self, part: Mask, queries: int, keys: int, chosen: tuple[int, ...] | None):
        object.__setattr__(self, "part", part)
        object.__setattr__(self, "queries", queries)
        object.__setattr__(self, "keys", keys)
        object.__setattr__(self, "chosen", chosen)

    @property
    def batch(self) -> int | None:
        return self.part.batch

    @property
    def heads(self) -> int | None:
        return self.part.heads if self.chosen is None else len(self.chosen)

    @property
    def has_ranges(self) -> bool:
        return self.part.has_ranges

    def to(self, device: torch.device | str) -> Mask:
        return Placed(self.part.to(device), self.queries, self.keys, self.chosen)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        if self.chosen is not None:
            head = torch.tensor(self.chosen, device=head.device)[head]
        inside = self.part.visible(batch, head, query - self.queries, (key - self.keys).clamp(min=0))
        return inside & (key >= self.keys)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        spans = self.part.spans_in(self._own(frame), device)
        edges = [edge + self.keys for edge in (spans.starts, spans.ends)]
        if self.chosen is not None:
            edges = [edge[:, list(self.chosen)] if edge.shape[1] > 1 else edge for edge in edges]
        return Spans.of(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def _own(self, frame: Frame) -> Frame:
        return Frame(frame.q_len, frame.k_len - self.keys, frame.q_start - self.queries)

    def _check(self, frame: Frame) -> None:
        self.part._check(self._own(frame))

    def __repr__(self) -> str:
        return f"placed({self.part!r}, queries={self.queries}, keys={self.keys}, heads={self.chosen})"


def placed(mask: Mask, *, queries: int, keys: int, heads: tuple[int, ...] | None) -> Mask:
    """The mask for queries and keys that stand so many positions further on; the mask itself where nothing changes.

    `heads` are the heads to keep, None for all.
    """
    chosen = heads if mask.heads is not None else None
    return mask if not (queries or keys or chosen is not None) else Placed(mask, queries, keys, chosen)
