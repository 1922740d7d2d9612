"""A batch whose items are at different positions: the queries of each item have their own positions.

    >>> from rearview import causal
    >>> from rearview.masks.lagged import lagged
    >>> lagged(causal(), [0, 2]).to_bool(1, 4)[:, 0, 0].int().tolist()
    [[1, 1, 1, 1], [1, 1, 0, 0]]

Prompts of unequal length are decoded together over one cache: its slots are the keys, and the queries of an item that
holds two tokens fewer are two positions earlier. Whatever the mask says about positions (the first keys, a chunk, a
document) then means the same as for the item alone. Padding on the left would not give that.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.masks.data import as_lengths, printed
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask, family
from rearview.masks.operators import Wrapped
from rearview.masks.spans import Spans


@family("lagged")
class Lagged(Wrapped):
    """`by`: int64 [batch]; `furthest` is its maximum."""

    is_lagged = True

    by: Tensor
    furthest: int

    @property
    def batch(self) -> int | None:
        return len(self.by)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return self.part.visible(batch, head, query - self.by.to(key.device)[batch], key)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        # The rows of all positions that queries of some item have; each item takes its own rows.
        wide = self._frame_of_part(frame)
        spans = self.part.spans_in(wide, device)
        row = torch.arange(frame.q_len, device=device) + (self.furthest - self.by.to(device)).unsqueeze(1)
        edges = []
        for edge in (spans.starts, spans.ends):
            edge = edge.expand(len(self.by), -1, wide.q_len, -1)
            at = row.view(len(self.by), 1, -1, 1).expand(-1, edge.shape[1], -1, edge.shape[3])
            edges.append(edge.gather(2, at))
        return Spans.of(*edges, q_len=frame.q_len, k_len=frame.k_len)

    def _frame_of_part(self, frame: Frame) -> Frame:
        return Frame(frame.q_len + self.furthest, frame.k_len, frame.q_start - self.furthest)

    def __repr__(self) -> str:
        return f"lagged({self.part!r}, {printed(self.by, 'items')})"


def lagged(mask: Mask, by: Sequence[int] | Tensor) -> Mask:
    """The same mask, with the queries of batch item b `by[b]` positions before those of the frame.

    >>> from rearview import causal
    >>> lagged(causal(), [0, 0])
    causal()
    """
    lengths = as_lengths(by, "by")
    furthest = int(lengths.max())
    return Lagged(mask, lengths, furthest) if furthest else mask
