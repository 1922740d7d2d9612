"""The sizes of tiles, stages and warpgroups for a head dim: what was measured to be fast, or fits the shared memory.

>>> Tiling.of(128, 128).width
128

The products of the tensor cores are 64 queries (or keys) high, and 227 KB of shared memory hold everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

# Queries per granule of a mask, and per consumer warpgroup.
GRANULE = 64
# Keys per program of the gradients of keys: 64 for each of two warpgroups.
KEY_TILE = 128
LARGEST_DIM = 256


@dataclass(frozen=True)
class Tiling:
    """`width` keys per tile of the forward kernel, `gradient_width` of the gradient of queries.

    `gradient_parts` granules of queries per tile of the fused backward kernel. With `apart`, the accumulators of the
    gradients of keys and of values do not fit into the registers together, and two passes compute one each.
    """

    consumers: int
    width: int
    stages: int
    registers: int
    gradient_width: int
    gradient_stages: int
    gradient_parts: int
    key_stages: int
    ahead: bool
    apart: bool

    @staticmethod
    @cache
    def of(key_dim: int, value_dim: int, *, short: bool = False) -> Tiling:
        """`short` says that the queries hear few keys: lower blocks then compute less that is not heard."""
        largest = max(key_dim, value_dim)
        if largest <= 64 and short:
            return Tiling(2, 128, 3, 240, 128, 2, 2, 2, ahead=True, apart=False)
        if largest <= 64:
            return Tiling(3, 128, 2, 160, 128, 2, 2, 2, ahead=True, apart=False)
        if largest <= 128:
            return Tiling(2, 128, 2, 240, 128, 2, 1, 2, ahead=True, apart=False)
        return Tiling(2, 32, 2, 240, 32, 1, 1, 1, ahead=False, apart=True)


def padded_dim(dim: int) -> int:
    """The columns of a tile in shared memory; TMA fills those beyond the head dim with zeros.

    >>> [padded_dim(dim) for dim in (16, 64, 80, 129)]
    [64, 64, 128, 256]
    """
    return max(64, 1 << (dim - 1).bit_length())
