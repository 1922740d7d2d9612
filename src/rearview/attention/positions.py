"""Rotary positions: queries and keys that are rotated by their positions, so that scores depend on distances only.

>>> import torch
>>> q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
>>> at = [rotation_at(torch.tensor([n]), head_dim=4, base=10000.0) for n in range(6)]
>>> near, far = (at[1](q) * at[0](k)).sum(), (at[5](q) * at[4](k)).sum()
>>> torch.allclose(near, far, atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rearview.attention.cache import KeyValueCache
from rearview.attention.sequence_shard import active_shard
from rearview.errors import BadArgument

# Rotates queries or keys [batch, heads, time, head_dim] by their positions.
Rotation = Callable[[Tensor], Tensor]


def rotation_at(positions: Tensor, *, head_dim: int, base: float, batch_invariant: bool = False) -> Rotation:
    """The rotation of queries and keys at `positions`, [time] or, where the items of a batch differ, [batch, time].

    Each pair of features is rotated by an angle that is proportional to the position. Feature n is paired with feature
    n + head_dim / 2, as in Llama; https://arxiv.org/abs/2104.09864 pairs neighbours, which is the same up to a
    permutation of the features.

    PyTorch's sine of a number has other last bits in a tensor of another shape; with `batch_invariant` each position is
    a tensor of its own.
    """
    half = torch.arange(head_dim // 2, device=positions.device, dtype=torch.float32)
    angles = positions.unsqueeze(-1) * base ** (half * (-2.0 / head_dim))  # [.., time, head_dim / 2]
    if angles.ndim == 3:
        angles = angles.unsqueeze(1)
    if batch_invariant:
        alone = angles.flatten(0, -2).unbind()
        cos, sin = (torch.stack([f(each) for each in alone]).view_as(angles) for f in (torch.cos, torch.sin))
    else:
        cos, sin = angles.cos(), angles.sin()

    def rotate(x: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=-1)
        c, s = cos.to(x.dtype), sin.to(x.dtype)
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)

    return rotate


def sequence_positions(tokens: Tensor) -> Tensor:
    """The positions of tokens [batch, time, ...] that begin a sequence: 0, 1, 2, ..., or those of this rank's rows.

    >>> sequence_positions(torch.tensor([[7, 8, 9]])).tolist()
    [0, 1, 2]
    """
    shard = active_shard()
    if shard is None:
        return torch.arange(tokens.shape[1], device=tokens.device)
    if tokens.shape[1] != shard.rows:
        expected = f"the {shard.rows} rows of this rank, of {shard.length}"
        advice = "Cut the whole sequence with layout.split(tokens)."
        raise BadArgument("tokens", expected=expected, got=list(tokens.shape), advice=advice)
    return shard.positions_on(tokens.device)


def next_positions(tokens: Tensor, cache: KeyValueCache | None) -> Tensor:
    """The position of each token in its row, those in the cache included: [time], or [batch, time] if items differ.

    >>> next_positions(torch.tensor([[7, 8, 9]]), None).tolist()
    [0, 1, 2]
    """
    if cache is None:
        return sequence_positions(tokens)
    count, starts = torch.arange(tokens.shape[1], device=tokens.device), cache.starts
    return count + len(cache) if starts is None else count + starts.unsqueeze(1)
