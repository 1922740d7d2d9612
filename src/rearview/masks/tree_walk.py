"""A walk around trees, which shows whether one node is an ancestor of another.

>>> walk = TreeWalk.around(torch.tensor([[-1, 0, 0]]))
>>> walk.entered.tolist(), walk.left.tolist(), walk.depths.tolist()
([0, 1, 3], [5, 2, 4], [0, 1, 1])
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TreeWalk(NamedTuple):
    """When a walk around the trees, depth first, enters and leaves each node: int32 [nodes] each.

    A node is an ancestor of another, or the node itself, exactly when it is entered no later and not left before the
    other is entered. Unlike those of `TreeRuns`, all sizes follow from the number of nodes, so a graph can be traced.
    """

    entered: Tensor
    left: Tensor

    @classmethod
    def around(cls, parents: Tensor) -> TreeWalk:
        """The walk around the trees of `parents` [batch, T], item after item."""
        parent, nodes = over_the_batch(parents), parents.numel()
        node, end = torch.arange(nodes, device=parent.device), 2 * nodes
        above, order = parent.sort(stable=True)
        siblings = above[1:] == above[:-1]
        none = torch.full_like(parent, -1)
        sibling = none.scatter(0, order[:-1], torch.where(siblings, order[1:], -1))
        # The first of its siblings is the child that the walk goes to; what has no parent is written beyond the nodes.
        is_first = torch.cat([siblings.new_ones(1), ~siblings]) & (above >= 0)
        child = torch.cat([none, none[:1]]).scatter(0, torch.where(is_first, above, nodes), order)[:nodes]
        # Entering node n is step n, leaving it is step nodes + n; the walk ends at step 2 x nodes.
        after_entering = torch.where(child >= 0, child, nodes + node)
        after_leaving = torch.where(parent >= 0, nodes + parent, end)
        after_leaving = torch.where(sibling >= 0, sibling, after_leaving)
        following = torch.cat([after_entering, after_leaving, node.new_full((1,), end)]).int()
        # The steps are a linked list, and how many remain is found by doubling.
        remaining = (torch.arange(end + 1, device=node.device) < end).int()
        for _ in range(int(end).bit_length()):
            remaining, following = remaining + remaining[following], following[following]
        return cls(end - remaining[:nodes], end - remaining[nodes:-1])

    @property
    def depths(self) -> Tensor:
        """The number of ancestors of each node: int64 [nodes]."""
        steps = torch.ones(2 * len(self.entered), dtype=torch.long, device=self.entered.device)
        steps[self.left.long()] = -1
        return steps.cumsum(0)[self.entered.long()] - 1


def over_the_batch(parents: Tensor) -> Tensor:
    """Parents [batch, T] as nodes of the whole batch: node n of item b is b x T + n. [batch x T]."""
    batch, length = parents.shape
    item = torch.arange(batch, device=parents.device).unsqueeze(1) * length
    return torch.where(parents < 0, -1, parents + item).flatten()
