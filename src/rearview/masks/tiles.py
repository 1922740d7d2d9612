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

from rearview.errors import BadArgument
from rearview.masks.frame import Frame, whole_number
from rearview.masks.spans import Spans

if TYPE_CHECKING:
    from rearview.masks.mask import Mask

SKIPPED, PARTIAL, FULL = 0, 1, 2


@dataclass(frozen=True, eq=False)
class Tiles:
    """A mask cut into tiles: `kind` is int8 [batch, head, query tile, key tile]: 0 skipped, 1 partial, 2 full."""

    kind: Tensor
    q_block: int
    k_block: int

    @classmethod
    def of(cls, mask: Mask, frame: Frame, *, block: int | tuple[int, int], device: torch.device) -> Tiles:
        """The tiles of a mask; a tile at the edge is full when all of it that exists is visible."""
        sizes = block if isinstance(block, tuple) else (block, block)
        if len(sizes) != 2:
            raise BadArgument("block", expected="one size, or (query block, key block)", got=repr(block))
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
    """From the number of visible pairs in each tile, in time proportional to the ranges and the tiles."""
    batch, heads, rows, _ = spans.starts.shape
    device, k_len = spans.starts.device, spans.k_len
    # One row may stand for every query. Its tiles are then one query high.
    height = torch.ones(1, dtype=torch.long, device=device) if rows == 1 else _sizes(spans.q_len, q_block, device)
    width, k_tiles = _sizes(k_len, k_block, device), -(-k_len // k_block)
    row = torch.arange(batch * heads * rows, device=device).view(batch, heads, rows, 1)
    strip = row // rows * len(height) + row % rows // q_block
    # A range up to n holds all keys of the tiles before that of n, and the rest of n / k_block keys of that tile.
    whole = torch.zeros(batch * heads * len(height) * (k_tiles + 1), dtype=torch.long, device=device)
    rest = whole.clone()
    for edges, sign in ((spans.ends, 1), (spans.starts, -1)):
        place = (strip * (k_tiles + 1) + edges // k_block).flatten()
        whole.scatter_add_(0, place, torch.full_like(place, sign))
        rest.scatter_add_(0, place, (edges % k_block).flatten().long() * sign)
    whole, rest = (each.view(batch, heads, len(height), k_tiles + 1) for each in (whole, rest))
    after = whole.flip(-1).cumsum(-1).flip(-1) - whole
    pairs = (after * k_block + rest)[..., :k_tiles]
    kind = torch.where(pairs == height.view(-1, 1) * width, FULL, torch.where(pairs > 0, PARTIAL, SKIPPED))
    return kind.to(torch.int8).expand(-1, -1, -(-spans.q_len // q_block), -1)


def _sizes(length: int, block: int, device: torch.device) -> Tensor:
    """The sizes of the blocks of a length: the last one may be smaller."""
    return (length - torch.arange(0, length, block, device=device)).clamp(max=block)


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
