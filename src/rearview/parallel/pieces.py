"""Pieces: which rank holds which positions, as runs of positions.

>>> pieces = Pieces.of([0, 0, 1, 0], bounds=[0, 3, 6, 9, 11], ranks=2)
>>> pieces.starts.tolist(), pieces.owners.tolist()
([0, 6, 9], [0, 1, 0])
>>> pieces.positions_of(0).tolist()
[0, 1, 2, 3, 4, 5, 9, 10]
>>> pieces.tokens
(8, 3)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Pieces:
    """Piece n holds the positions from starts[n] up to the next start; `owners[n]` is its rank. Both are int64."""

    starts: Tensor
    owners: Tensor
    length: int
    ranks: int

    @classmethod
    def of(cls, owners: Sequence[int] | Tensor, *, bounds: Sequence[int] | Tensor, ranks: int) -> Pieces:
        """The pieces of granules: granule n, from bounds[n] to bounds[n + 1], belongs to owners[n]."""
        owner, edge = torch.as_tensor(owners), torch.as_tensor(bounds)
        length = int(edge[-1])
        there = edge[1:] > edge[:-1]
        owner, starts = owner[there], edge[:-1][there]
        opens = torch.ones_like(owner, dtype=torch.bool)
        opens[1:] = owner[1:] != owner[:-1]
        return cls(starts[opens], owner[opens], length, ranks)

    @cached_property
    def ends(self) -> Tensor:
        return torch.cat([self.starts[1:], self.starts.new_tensor([self.length] if len(self.starts) else [])])

    @cached_property
    def tokens(self) -> tuple[int, ...]:
        """The number of positions of each rank."""
        count = torch.zeros(self.ranks, dtype=torch.long).index_add_(0, self.owners, self.ends - self.starts)
        return tuple(count.tolist())

    def positions_of(self, rank: int) -> Tensor:
        """The positions that a rank holds, in increasing order: int64."""
        own = self.owners == rank
        starts, ends = self.starts[own], self.ends[own]
        return positions_in(starts, ends)

    def owner_of(self, positions: Tensor) -> Tensor:
        """The rank that holds each of `positions`."""
        return self.owners[torch.searchsorted(self.starts, positions, right=True) - 1]


def positions_in(starts: Tensor, ends: Tensor) -> Tensor:
    """The positions of runs [start, end), one run after the other.

    >>> positions_in(torch.tensor([4, 0]), torch.tensor([6, 1])).tolist()
    [4, 5, 0]
    """
    sizes = ends - starts
    before = sizes.cumsum(0) - sizes
    return torch.arange(int(sizes.sum())) + (starts - before).repeat_interleave(sizes)
