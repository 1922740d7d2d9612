"""Tiles: which blocks of queries x keys are full, partial or skipped. What block-sparse kernels read.

>>> from rearview import causal
>>> causal().tiles(384, block=128).counts
{'skipped': 3, 'partial': 3, 'full': 3}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.masks.frame import Frame, whole_number
from rearview.masks.spans import Spans

if TYPE_CHECKING:
    from rearview.masks.mask import Mask

SKIPPED, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Tiles:
    """`kind` is int8 [batch, head, query tile, key tile]: 0 skipped, 1 partial, 2 full."""

    kind: Tensor
    q_block: int
    k_block: int

    @classmethod
    def of(cls, mask: Mask, frame: Frame, *, block: int | tuple[int, int], device: torch.device) -> Tiles:
        """The tiles of a mask; a tile at the edge is full when all of it that exists is visible."""
        sizes = block if isinstance(block, tuple) else (block, block)
        q_block, k_block = (whole_number(size, "block", at_least=1) for size in sizes)
        if mask.has_ranges:
            kind = _from_spans(mask.spans_in(frame, device), q_block, k_block)
        else:
            kind = _from_rule(mask, frame, q_block, k_block, device)
        return cls(kind, q_block, k_block)

    @property
    def counts(self) -> dict[str, int]:
        names = {"skipped": SKIPPED, "partial": PARTIAL, "full": FULL}
        return {name: int((self.kind == kind).sum()) for name, kind in names.items()}


def _from_spans(spans: Spans, q_block: int, k_block: int) -> Tensor:
    first = torch.arange(0, spans.k_len, k_block, device=spans.starts.device)
    last = (first + k_block).clamp(max=spans.k_len)
    some, every = spans.heard_by_any(q_block), spans.heard_by_all(q_block)
    kind = torch.zeros(*some.starts.shape[:3], len(first), dtype=torch.int8, device=first.device)
    for start, end in zip(some.starts.unbind(-1), some.ends.unbind(-1), strict=True):
        kind[(start.unsqueeze(-1) < last) & (end.unsqueeze(-1) > first)] = PARTIAL
    # Canonical ranges do not touch, so a tile that is heard by all lies inside a single one of them.
    for start, end in zip(every.starts.unbind(-1), every.ends.unbind(-1), strict=True):
        kind[(start.unsqueeze(-1) <= first) & (end.unsqueeze(-1) >= last)] = FULL
    return kind


def _from_rule(mask: Mask, frame: Frame, q_block: int, k_block: int, device: torch.device) -> Tensor:
    if frame.q_len == 0 or frame.k_len == 0:
        tiles = (-(-frame.q_len // q_block), -(-frame.k_len // k_block))
        return torch.zeros(mask.batch or 1, mask.heads or 1, *tiles, dtype=torch.int8, device=device)
    strips = []
    # A strip of one tile's height at a time keeps the memory linear in the length.
    for first in range(0, frame.q_len, q_block):
        rows = torch.arange(first, min(first + q_block, frame.q_len), device=device)
        visible = mask.visible_in(frame, device, rows).split(k_block, dim=-1)
        some = torch.stack([tile.any(-1).any(-1) for tile in visible], dim=-1)
        every = torch.stack([tile.all(-1).all(-1) for tile in visible], dim=-1)
        strips.append(torch.where(every, FULL, torch.where(some, PARTIAL, SKIPPED)).to(torch.int8))
    return torch.stack(strips, dim=2)
