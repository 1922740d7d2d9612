"""The paths of trees, as runs: stretches of positions in which each is the parent of the next.

    >>> runs = TreeRuns.of(torch.tensor([[-1, 0, 1, 1, 3]]))
    >>> runs.head.tolist(), runs.above.tolist(), runs.most
    ([0, 3], [-1, 1], 2)

The ancestors of a node are the part of its run up to itself, the part of the run above up to where it branches off, and
so on. There is no loop over nodes: sums along paths are found by doubling the steps (pointer jumping), so that even a
tree that is one long path takes few rounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rearview.masks.frame import LARGEST_NUMBER
from rearview.masks.tree_walk import over_the_batch


@dataclass(frozen=True)
class TreeRuns:
    """Nodes are counted over the whole batch: node n of item b is b x T + n."""

    length: int
    """T, the nodes of one item."""
    run: Tensor
    """The run of each node: [nodes]."""
    head: Tensor
    """The first node of each run: [runs]."""
    above: Tensor
    """The parent of that node, -1 for a root: [runs]."""

    @classmethod
    def of(cls, parents: Tensor) -> TreeRuns:
        """The runs of `parents` [batch, T], in which parents come before their children."""
        parent = over_the_batch(parents)
        opens = parent != torch.arange(-1, len(parent) - 1, device=parent.device)
        # Node 0 is a root, although -1 looks like the node before it.
        opens[:1] = True
        head = opens.nonzero().flatten()
        return cls(parents.shape[1], opens.cumsum(0) - 1, head, parent[head])

    def _sum_to_root(self, value: Tensor) -> Tensor:
        """The sum of an int32 value per run over each run and all runs above it: [runs]."""
        # The last entry is above every root and adds nothing.
        top = len(self.head)
        sums = torch.cat([value, value.new_zeros(1)])
        up = torch.cat([torch.where(self.above < 0, top, self.run[self.above]), self.head.new_full((1,), top)]).int()
        while bool((up != top).any()):
            sums, up = sums + sums.index_select(0, up), up.index_select(0, up)
        return sums[:-1]

    @cached_property
    def count(self) -> Tensor:
        """The number of ranges of the nodes of each run: int32 [runs]."""
        return self._sum_to_root(torch.ones_like(self.head, dtype=torch.int32))

    @cached_property
    def most(self) -> int:
        """The number of ranges in the fullest row."""
        return int(self.count.max())

    @cached_property
    def depths(self) -> Tensor:
        """The number of ancestors of each node: int64 [batch, T]."""
        steps = torch.where(self.above < 0, 0, self.above - self.head[self.run[self.above]] + 1)
        depth, node = self._sum_to_root(steps.int()), torch.arange(len(self.run), device=self.run.device)
        return (depth[self.run] + node - self.head[self.run]).view(-1, self.length)

    @cached_property
    def _table(self) -> tuple[Tensor, Tensor, Tensor]:
        """The row of each run, and there its starts and ends: int32 [runs, most], in order, missing ones beyond all.

        A run has the ranges of the run above it, of which the last ends where it branches off, and itself. Rows are
        sorted by the number of ranges, so that a row above is always filled before those below are.
        """
        count, order = self.count.sort(stable=True)
        row = torch.empty_like(order)
        row[order] = torch.arange(len(order), device=order.device)
        item = self.head[order] // self.length * self.length
        head, branch = (self.head[order] - item).int(), (self.above[order] + 1 - item).int()
        up = row[self.run[self.above[order]]]
        starts = torch.full((len(order), self.most), LARGEST_NUMBER, dtype=torch.int32, device=order.device)
        ends = starts.clone()
        levels = torch.bincount(count, minlength=self.most + 1).cumsum(0).tolist()
        for ranges in range(1, self.most + 1):
            rows = slice(levels[ranges - 1], levels[ranges])
            if ranges > 1:
                for edge in (starts, ends):
                    edge[rows, : ranges - 1] = edge[:, : ranges - 1].index_select(0, up[rows])
                ends[rows, ranges - 2] = branch[rows]
            starts[rows, ranges - 1] = head[rows]
        return row, starts, ends

    def at(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Starts and ends of what the nodes at these positions hear: int32 [batch, rows, most], in order."""
        batch = len(self.run) // self.length
        run = self.run[(torch.arange(batch, device=rows.device).unsqueeze(1) * self.length + rows).flatten()]
        row, starts, ends = self._table
        shape = (batch, len(rows), self.most)
        starts, ends = (edge.index_select(0, row[run]).view(shape) for edge in (starts, ends))
        # The last range is a part of the node's own run, up to itself.
        own = (self.count[run].long() - 1).view(batch, -1, 1)
        return starts, ends.scatter_(-1, own, (rows + 1).int().view(1, -1, 1).expand_as(own))
