"""Rotary positions: pairs of features are turned by an angle that grows with the position.

    >>> import torch
    >>> turn = turn_to(torch.arange(3), head_dim=4, base=10000.0)
    >>> q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
    >>> at = [turn_to(torch.tensor([n]), head_dim=4, base=10000.0) for n in range(6)]
    >>> near, far = (at[1](q) * at[0](k)).sum(), (at[5](q) * at[4](k)).sum()
    >>> torch.allclose(near, far, atol=1e-6)    # only the distance counts
    True

Feature n is paired with feature n + head_dim / 2, as in Llama (https://arxiv.org/abs/2104.09864 pairs neighbours; the
two differ by an order of features that training does not notice).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

# Queries or keys [batch, heads, time, head_dim] -> the same, turned to their positions.
Turn = Callable[[Tensor], Tensor]


def turn_to(positions: Tensor, *, head_dim: int, base: float) -> Turn:
    """Turns queries and keys to `positions`: [time], or [batch, time] when the items stand apart."""
    half = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
    angles = positions.unsqueeze(-1) * base ** (half * (-2.0 / head_dim))  # [.., time, head_dim / 2]
    if angles.ndim == 3:
        angles = angles.unsqueeze(1)
    cos, sin = angles.cos(), angles.sin()

    def turn(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

    return turn
