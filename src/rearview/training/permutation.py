"""A random order that is computed number by number, for orders that are too long to keep.

A Feistel network permutes the numbers below a power of four; a number that lands beyond the last is permuted again
("cycle walking"), so what remains is a permutation of exactly as many numbers as were asked for.

>>> import torch
>>> permuted(torch.arange(10), 10, seed=1).sort().values.tolist()
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDS = 6
# An odd constant of 31 bits, so that a product with a half of at most 32 bits fits into 64.
MULTIPLIER = 0x45D9F3B


def permuted(numbers: Tensor, count: int, seed: int) -> Tensor:
    """Where a random permutation of 0, ..., count - 1 puts each of these numbers (int64, of any shape)."""
    bits = max(1, ((count - 1).bit_length() + 1) // 2)
    result = _network(numbers, bits, seed)
    while bool((outside := result >= count).any()):
        result = torch.where(outside, _network(result, bits, seed), result)
    return result


def _network(numbers: Tensor, bits: int, seed: int) -> Tensor:
    mask = (1 << bits) - 1
    left, right = numbers >> bits, numbers & mask
    for turn in range(ROUNDS):
        key = (seed >> (8 * turn)) & 0x7FFFFFFF ^ (turn * 0x9E3779B1 & 0x7FFFFFFF)
        mixed = (right ^ key) * MULTIPLIER
        mixed = (mixed ^ (mixed >> 16)) & 0x7FFFFFFF
        mixed = mixed * MULTIPLIER
        left, right = right, left ^ ((mixed ^ (mixed >> 15)) & mask)
    return (left << bits) | right
