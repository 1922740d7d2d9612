"""A batch whose items are not equally far: each item's queries stand at positions of its own.

    >>> from rearview import causal
    >>> from rearview.masks.behind import behind
    >>> behind(causal(), [0, 2]).to_bool(1, 4)[:, 0, 0].int().tolist()
    [[1, 1, 1, 1], [1, 1, 0, 0]]

Prompts of unequal length are decoded together over one cache: its slots are the keys, and the item that holds two
tokens fewer asks from two positions further back. Whatever the mask says of positions (the first keys, a chunk, a
document) then means the same as for the item alone, which padding on the left would not give.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.masks.data import as_lengths, printed
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans


class Behind(Mask):
    """`by`: int64 [batch]."""

    __slots__ = ("by", "furthest", "part")
    part: Mask
    by: Tensor
    furthest: int

    def __init__(self, part: Mask, by: Tensor):
        object.__setattr__(self, "part", part)
        object.__setattr__(self, "by", by)
        object.__setattr__(self, "furthest", int(by.max()))

    @property
    def batch(self) -> int | None:
        return len(self.by)

    @property
    def heads(self) -> int | None:
        return self.part.heads

    @property
    def has_ranges(self) -> bool:
        return self.part.has_ranges

    def to(self, device: torch.device | str) -> Mask:
        return Behind(self.part.to(device), self.by.to(device))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.part.visible(batch, head, query - self.by.to(key.device)[batch], key)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        # The rows of every position that some item asks from, and of these each item's own.
        wide = self._widened(frame)
        spans = self.part.spans_in(wide, device)
        row = torch.arange(frame.q_len, device=device) + (self.furthest - self.by.to(device)).unsqueeze(1)
        edges = []
        for edge in (spans.starts, spans.ends):
            edge = edge.expand(len(self.by), -1, wide.q_len, -1)
            at = row.view(len(self.by), 1, -1, 1).expand(-1, edge.shape[1], -1, edge.shape[3])
            edges.append(edge.gather(2, at))
        return Spans.of(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def _widened(self, frame: Frame) -> Frame:
        return Frame(frame.q_len + self.furthest, frame.k_len, frame.q_start - self.furthest)

    def _check(self, frame: Frame) -> None:
        self.part._check(self._widened(frame))

    def __repr__(self) -> str:
        return f"behind({self.part!r}, {printed(self.by, 'items')})"


def behind(mask: Mask, by: Sequence[int] | Tensor) -> Mask:
    """The same mask, where the queries of batch item b stand `by[b]` positions before those of the frame.

    >>> from rearview import causal
    >>> behind(causal(), [0, 0])
    causal()
    """
    lengths = as_lengths(by, "by")
    return Behind(mask, lengths) if bool(lengths.any()) else mask
