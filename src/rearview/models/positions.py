"""Positions in models: along the paths of a row, and relative position biases (T5).

>>> bucket_of(torch.tensor([-3, 0, 3]), buckets=8, furthest=16, both_ways=False).tolist()
[3, 0, 0]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.masks.paths import Paths


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
