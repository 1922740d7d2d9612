"""The keys that groups of queries need: the union of their ranges, as runs.

    >>> from rearview import causal, window
    >>> spans = (causal() & window(3)).spans(8)
    >>> needs = Needs.of_queries(spans, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    >>> needs.group.tolist(), needs.starts.tolist(), needs.ends.tolist()
    ([0, 1], [0, 2], [4, 8])

Every group is worked out at once, by one sort: a range of group g begins at g x (length + 1) + start, so that ranges of
different groups never touch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.masks import Spans
from rearview.parallel.pieces import Pieces, positions_in


@dataclass(frozen=True, eq=False)
class Needs:
    """Runs [start, end) of keys, sorted by group, batch item and start, disjoint and not touching. All are int64."""

    group: Tensor
    item: Tensor
    starts: Tensor
    ends: Tensor
    length: int
    items: int

    @classmethod
    def of_queries(cls, spans: Spans, group: Tensor) -> Needs:
        """What each group of queries hears; `group` [q_len] says to which group a query belongs."""
        rows = spans.starts.shape[2]
        if rows == 1:
            # All queries hear the same keys: one row serves every group that has a query.
            group = torch.unique(group)
            rows = len(group)
        shape = (spans.batch, spans.heads, rows, spans.most_ranges)
        starts, ends = spans.starts.expand(shape), spans.ends.expand(shape)
        there = starts < ends
        item = torch.arange(spans.batch).view(-1, 1, 1, 1).expand(shape)[there]
        of_row = group.view(1, 1, -1, 1).expand(shape)[there]
        return cls._merged(
            of_row, item, starts[there].long(), ends[there].long(), length=spans.k_len, items=spans.batch
        )

    @classmethod
    def _merged(cls, group: Tensor, item: Tensor, starts: Tensor, ends: Tensor, *, length: int, items: int) -> Needs:
        stride = length + 1
        base = (group * items + item) * stride
        first, order = (base + starts).sort()
        reach = (base + ends)[order].cummax(0).values
        opens = torch.ones_like(first, dtype=torch.bool)
        opens[1:] = first[1:] > reach[:-1]
        closes = torch.ones_like(opens)
        closes[:-1] = opens[1:]
        first, last = first[opens], reach[closes]
        which = first // stride
        return cls(which // items, which % items, first % stride, last % stride, length, items)

    def of_ranks(self, owners: Tensor) -> Needs:
        """What each rank needs, where the groups are granules and `owners[n]` is the rank of granule n."""
        return Needs._merged(
            owners[self.group], self.item, self.starts, self.ends, length=self.length, items=self.items
        )

    def missing(self, pieces: Pieces) -> Tensor:
        """How many keys each rank needs that it does not hold, summed over items; the groups are ranks."""
        total = torch.zeros(pieces.ranks, dtype=torch.long).index_add_(0, self.group, self.sizes)
        if not len(self.group):
            return total
        stride = self.length + 1
        first = (self.group * self.items + self.item) * stride + self.starts
        before = self.sizes.cumsum(0) - self.sizes

        def needed_before(edges: Tensor) -> Tensor:
            """The keys of all runs before a place in the order of ranks, items and positions."""
            run = (torch.searchsorted(first, edges, right=True) - 1).clamp(min=0)
            return before[run] + torch.minimum((edges - first[run]).clamp(min=0), self.sizes[run])

        for item in range(self.items):
            base = (pieces.owners * self.items + item) * stride
            held = needed_before(base + pieces.ends) - needed_before(base + pieces.starts)
            total.index_add_(0, pieces.owners, -held)
        return total

    def cut(self, pieces: Pieces) -> tuple[Needs, Tensor]:
        """The runs cut at the edges of pieces, and the rank that holds each part. The groups are ranks."""
        first = torch.searchsorted(pieces.starts, self.starts, right=True) - 1
        last = torch.searchsorted(pieces.starts, self.ends)
        count = last - first
        piece = positions_in(first, last)
        group, item, starts, ends = (
            each.repeat_interleave(count) for each in (self.group, self.item, self.starts, self.ends)
        )
        starts, ends = torch.maximum(starts, pieces.starts[piece]), torch.minimum(ends, pieces.ends[piece])
        return Needs(group, item, starts, ends, self.length, self.items), pieces.owners[piece]

    @property
    def sizes(self) -> Tensor:
        return self.ends - self.starts

    def selected(self, chosen: Tensor) -> Needs:
        """The runs that the bool tensor `chosen` names."""
        group, item, starts, ends = (each[chosen] for each in (self.group, self.item, self.starts, self.ends))
        return Needs(group, item, starts, ends, self.length, self.items)
