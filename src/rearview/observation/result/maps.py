"""Pooled maps: made coarser without loss, and divided by what uniform attention would give.

>>> import torch
>>> ratio(torch.tensor([2.0, 0.0]), torch.tensor([1.0, 0.0])).tolist()    # no query may hear the second key
[2.0, 0.0]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from rearview.attention.stats.bins import merged

if TYPE_CHECKING:
    from rearview.attention.stats import Statistics
    from rearview.observation.result.layer import Layer


def ratio(found: Tensor, expected: Tensor) -> Tensor:
    """found / expected; 0 where nothing is expected, as nothing can be found there."""
    return (found / expected.masked_fill(expected == 0, 1)).masked_fill(expected == 0, 0)


def expected_of(layer: Layer, item: int) -> Tensor:
    """What uniform attention under the same mask would give to each key: [heads, keys]."""
    expected = layer.statistics.expected
    chosen = expected[min(item, expected.shape[0] - 1)]
    return chosen.expand(len(layer.heads), -1)


def coarser(statistics: Statistics, item: int, row: int, size: int | None) -> Tensor:
    """The pooled map of one batch item and head with at most `size` bins per side; rows still sum to 1."""
    assert statistics.map is not None
    factor = 1 if size is None else -(-max(statistics.map.shape[-2:]) // size)
    return pooled(statistics, (item, row), factor)[0]


def pooled(statistics: Statistics, of: tuple[int, ...], factor: int) -> tuple[Tensor, Tensor]:
    """The map [rows, columns] with every `factor` bins joined into one, and the number of queries that heard, [rows].

    `of` is a batch item, or a batch item and a head; for an item alone, [heads] comes first in both.
    """
    assert statistics.map is not None
    assert statistics.rows_heard is not None
    sums, heard = statistics.map[of], statistics.rows_heard[of]
    if factor > 1:
        sums, heard = merged(sums, factor, (-2, -1)), merged(heard, factor, (-1,))
    return sums / heard.clamp(min=1).unsqueeze(-1), heard
