"""Positions inside attention: rotary positions (GPT) and relative position biases (T5).

>>> import torch
>>> q, k = torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4)
>>> at = [rotation_at(torch.tensor([n]), head_dim=4, base=10000.0) for n in range(6)]
>>> near, far = (at[1](q) * at[0](k)).sum(), (at[5](q) * at[4](k)).sum()
>>> torch.allclose(near, far, atol=1e-6)    # scores depend on the distance only
True
>>> bucket_of(torch.tensor([-3, 0, 3]), buckets=8, furthest=16, both_ways=False).tolist()
[3, 0, 0]
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from rearview.attention.sequence_shard import active_shard
from rearview.errors import BadArgument
from rearview.masks.paths import Paths

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
    """The positions of tokens [batch, time] that begin a sequence: 0, 1, 2, ..., or those of this rank's rows.

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


def positions_along(paths: Paths, slots: Tensor) -> Tensor:
    """The positions of the tokens at `slots` along their paths; both are [time] or [batch, time].

    >>> from rearview import tree
    >>> positions_along(tree([-1, 0, 1, 1, 3]), torch.tensor([2, 3, 4])).tolist()
    [2, 2, 3]
    """
    if not isinstance(paths, Paths):
        expected = "tree(parents), shared_prefix(...) or documents(ids)"
        raise BadArgument("paths", expected=expected, got=repr(paths))
    positions = paths.positions.to(slots.device)
    needed = int(slots.max()) + 1 if slots.numel() else 0
    if positions.shape[-1] < needed:
        expected = f"sequences of all {needed} positions, including those in the cache"
        raise BadArgument("paths", expected=expected, got=f"{positions.shape[-1]} positions")
    if positions.ndim == 1:
        return positions[slots]
    return positions.gather(1, slots.expand(len(positions), -1))


def bucket_of(distance: Tensor, *, buckets: int, furthest: int, both_ways: bool) -> Tensor:
    """The bucket of each distance (key position - query position), as in https://arxiv.org/abs/1910.10683.

    Half of the buckets hold a single distance each; the others grow exponentially up to `furthest`. With `both_ways`,
    half of the buckets are for keys after the query; otherwise such keys count as distance 0.
    """
    after = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        after = (distance > 0).long() * buckets
        distance = distance.abs()
    else:
        distance = -distance.clamp(max=0)
    single = buckets // 2
    growth = torch.log(distance.float() / single) / math.log(furthest / single) * (buckets - single)
    far = (single + growth.clamp(min=0).long()).clamp(max=buckets - 1)
    return after + torch.where(distance < single, distance, far)


class RelativeBias(nn.Module):
    """T5's learned bias per head and distance, [1, heads, queries, keys]; all layers of a stack share one table."""

    def __init__(self, heads: int, *, buckets: int, furthest: int, both_ways: bool):
        super().__init__()
        self.buckets, self.furthest, self.both_ways = buckets, furthest, both_ways
        self.table = nn.Embedding(buckets, heads)

    def forward(self, q_len: int, k_len: int) -> Tensor:
        """The bias for queries at the last `q_len` of `k_len` positions."""
        device = self.table.weight.device
        query = torch.arange(k_len - q_len, k_len, device=device).unsqueeze(1)
        distance = torch.arange(k_len, device=device) - query
        bucket = bucket_of(distance, buckets=self.buckets, furthest=self.furthest, both_ways=self.both_ways)
        return self.table(bucket).permute(2, 0, 1).unsqueeze(0)
