"""T5's relative positions: a learned bias for each head and each distance, far distances sharing a bucket.

>>> import torch
>>> bucket_of(torch.tensor([-3, 0, 3]), buckets=8, furthest=16, both_ways=False).tolist()
[3, 0, 0]
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def bucket_of(distance: Tensor, *, buckets: int, furthest: int, both_ways: bool) -> Tensor:
    """The bucket of each distance (key position - query position), as in https://arxiv.org/abs/1910.10683.

    Half of the buckets are single distances, the rest grow by a factor up to `furthest`. `both_ways` splits them
    between keys before and keys after; otherwise every key after counts as distance 0.
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
    """The bias of the scores, [1, heads, queries, keys]; one table for all layers of a stack."""

    def __init__(self, heads: int, *, buckets: int, furthest: int, both_ways: bool):
        super().__init__()
        self.buckets, self.furthest, self.both_ways = buckets, furthest, both_ways
        self.table = nn.Embedding(buckets, heads)

    def forward(self, q_len: int, k_len: int) -> Tensor:
        """Queries stand at the last positions of the keys, as everywhere."""
        device = self.table.weight.device
        query = torch.arange(k_len - q_len, k_len, device=device).unsqueeze(1)
        distance = torch.arange(k_len, device=device) - query
        bucket = bucket_of(distance, buckets=self.buckets, furthest=self.furthest, both_ways=self.both_ways)
        return self.table(bucket).permute(2, 0, 1).unsqueeze(0)
