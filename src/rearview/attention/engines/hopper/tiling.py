"""The sizes of tiles, stages and warpgroups for a head dim: what was measured to be fast, or fits the shared memory.

>>> Tiling.of(128, 128).width
128

The products of the tensor cores are 64 queries (or keys) high, and 227 KB of shared memory hold everything.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Literal

# Queries per granule of a mask, and per consumer warpgroup.
GRANULE = 64
# How many keys a query hears, roughly.
Reach = Literal["near", "middle", "far"]
# Keys per program of the gradients of keys: 64 for each of two warpgroups.
KEY_TILE = 128
LARGEST_DIM = 256


@dataclass(frozen=True)
class Tiling:
    """`width` keys per tile of the forward kernel, `gradient_width` of the gradient of queries.

    With `folds`, maxima and sums of rows are trees in the forward kernel. Kernels that hold two blocks of queries
    (`blocks`, `gradient_blocks`) or two tiles of keys (`key_tiles`, and `fused_tiles` in the fused backward kernel)
    load the next one ahead. `gradient_parts` granules of queries are a tile of the fused backward kernel. With `apart`,
    the accumulators of the gradients of keys and of values do not fit into the registers together, and two passes
    compute one each.
    """

    consumers: int
    width: int
    stages: int
    blocks: int
    folds: bool
    registers: int
    gradient_width: int
    gradient_stages: int
    gradient_blocks: int
    gradient_parts: int
    key_stages: int
    key_tiles: int
    fused_tiles: int
    ahead: bool
    apart: bool

    @staticmethod
    @cache
    def of(key_dim: int, value_dim: int, *, reach: Reach = "far") -> Tiling:
        """Lower blocks and narrower tiles compute less that is not heard, which counts where few keys are heard."""
        largest = max(key_dim, value_dim)
        if largest > 128:
            return Tiling(
                consumers=2, width=32, stages=2, blocks=1, folds=False, registers=240,
                gradient_width=32, gradient_stages=1, gradient_blocks=1, gradient_parts=1,
                key_stages=1, key_tiles=1, fused_tiles=1, ahead=False, apart=True,
            )  # fmt: skip
        wide = Tiling(
            consumers=2, width=128, stages=2, blocks=2, folds=False, registers=240,
            gradient_width=128, gradient_stages=2, gradient_blocks=1, gradient_parts=1,
            key_stages=2, key_tiles=2, fused_tiles=2, ahead=True, apart=False,
        )  # fmt: skip
        if largest <= 64:
            wide = replace(wide, gradient_blocks=2, gradient_parts=2, stages=3, folds=True)
        if reach == "near":
            return replace(wide, width=64, stages=4)
        if reach == "far" and largest <= 64:
            return replace(wide, consumers=3, stages=2, blocks=1, folds=False, registers=160)
        return wide


def padded_dim(dim: int) -> int:
    """The columns of a tile in shared memory; TMA fills those beyond the head dim with zeros.

    >>> [padded_dim(dim) for dim in (16, 64, 80, 129)]
    [64, 64, 128, 256]
    """
    return max(64, 1 << (dim - 1).bit_length())
