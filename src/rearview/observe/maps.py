"""Pooled maps: made coarser without loss, and set against what uniform attention would give.

>>> import torch
>>> ratio(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])).tolist()    # nobody may hear the second
[2.0, 0.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor

if TYPE_CHECKING:
    from rearview.attention.statistics import Statistics
    from rearview.observe.layer import Layer


def ratio(found: Tensor, expected: Tensor) -> Tensor:
    """found / expected, 0 where nothing is expected (and nothing can be found)."""
    return (found / expected.masked_fill(expected == 0, 1)).masked_fill(expected == 0, 0)


def expected_of(layer: Layer, item: int) -> Tensor:
    """What uniform attention under the same mask would give each key: [heads, keys]."""
    expected = layer.statistics.expected
    chosen = expected[min(item, expected.shape[0] - 1)]
    return chosen.expand(len(layer.heads), -1)


def of_statistics(statistics: Statistics, item: int, row: int) -> Tensor:
    """The pooled map of one batch item and head."""
    return coarser(statistics, item, row, None)


def coarser(statistics: Statistics, item: int, row: int, size: int | None) -> Tensor:
    """The pooled map with at most `size` bins a side, by joining neighbouring bins: rows still sum to 1."""
    assert statistics.map is not None
    assert statistics.rows_heard is not None
    sums, heard = statistics.map[item, row], statistics.rows_heard[item, row]
    factor = 1 if size is None else -(-max(sums.shape) // size)
    sums, heard = merged(sums, heard, factor)
    return sums / heard.clamp(min=1).unsqueeze(-1)


def merged(sums: Tensor, heard: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Sums [rows, cols] and heard queries [rows], `factor` bins as one."""
    if factor == 1:
        return sums, heard
    rows, cols = (-(-side // factor) for side in sums.shape)
    padded = F.pad(sums, (0, cols * factor - sums.shape[1], 0, rows * factor - sums.shape[0]))
    summed = padded.unflatten(1, (cols, factor)).sum(2).unflatten(0, (rows, factor)).sum(1)
    return summed, F.pad(heard, (0, rows * factor - len(heard))).unflatten(0, (rows, factor)).sum(1)
