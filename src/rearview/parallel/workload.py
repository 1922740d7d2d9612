"""Workload: the work that the masks of a model make of a sequence, granule by granule: visible area, needed keys.

    >>> from rearview import causal
    >>> work = Workload.of([causal()], length=8, ranks=2)
    >>> work.bounds.tolist(), work.area.tolist()
    ([0, 1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8])

A granule is a run of neighbouring positions that stay together. Ranks are given whole granules, so what a placement
costs is worked out from a few thousand granules, and not from a million positions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import NoRangeForm
from rearview.masks import Mask, Spans
from rearview.parallel.needs import Needs
from rearview.parallel.pieces import Pieces

# Kernels compute in blocks of about this many queries, so smaller granules would waste parts of blocks.
GRANULE = 128
# Half of the most granules per rank: beyond that a placement takes long to find, and gains little.
MOST_HALVES = 32
# Half of the fewest granules per rank, where the sequence is long enough: with fewer, work cannot be balanced.
FEWEST_HALVES = 8


@dataclass(frozen=True, eq=False)
class Workload:
    """The masks that differ, in how many layers each is used, and what they ask of each granule.

    `area` [granules] counts visible (query, key) pairs of all layers and batch items, times `area_unit`, which is the
    number of heads that a pair is counted for. Integers, so that every rank comes to the same sums.
    """

    masks: tuple[Mask, ...]
    layers: tuple[int, ...]
    items: int
    length: int
    ranks: int
    bounds: Tensor
    area: Tensor
    area_unit: int
    needs: tuple[Needs, ...]

    @classmethod
    def of(cls, masks: Sequence[Mask], *, length: int, ranks: int) -> Workload:
        different = {id(mask): mask for mask in masks}
        layers = tuple(sum(id(mask) == key for mask in masks) for key in different)
        spans = [spans_of(mask, length) for mask in different.values()]
        items = max(each.batch for each in spans)
        unit = math.lcm(*(each.heads for each in spans))
        per_position = torch.zeros(length, dtype=torch.long)
        for count, each in zip(layers, spans, strict=True):
            scale = count * (items // each.batch) * (unit // each.heads)
            per_position += each.keys_heard.sum((0, 1)) * scale
        bounds = granule_bounds(length, ranks)
        granule = torch.arange(len(bounds) - 1).repeat_interleave(bounds.diff())
        total = torch.cat([per_position.new_zeros(1), per_position.cumsum(0)])
        needs = tuple(Needs.of_queries(each, granule) for each in spans)
        return cls(tuple(different.values()), layers, items, length, ranks, bounds, total[bounds].diff(), unit, needs)

    @property
    def granules(self) -> int:
        return len(self.area)

    def pieces(self, owners: Tensor) -> Pieces:
        """The pieces of ranks, where `owners[n]` is the rank of granule n."""
        return Pieces.of(owners, bounds=self.bounds, ranks=self.ranks)

    def area_of(self, owners: Tensor) -> Tensor:
        """The visible area of each rank, in the unit of `area`."""
        return torch.zeros(self.ranks, dtype=torch.long).index_add_(0, owners, self.area)

    def travelling(self, owners: Tensor, *, receivers: int | None = None) -> Iterator[tuple[Needs, Tensor]]:
        """For each mask the runs of keys that travel, by receiver (their group), and the rank that sends each.

        With `receivers`, only what the first so many ranks receive.
        """
        pieces = self.pieces(owners)
        for needs in self.needs:
            of_ranks = needs.of_ranks(owners)
            if receivers is not None:
                of_ranks = of_ranks.selected(of_ranks.group < receivers)
            parts, holder = of_ranks.cut(pieces)
            travel = parts.group != holder
            yield parts.selected(travel), holder[travel]

    def received(self, owners: Tensor) -> Tensor:
        """The keys that each rank receives in all layers, summed over batch items."""
        pieces, total = self.pieces(owners), torch.zeros(self.ranks, dtype=torch.long)
        for layers, needs in zip(self.layers, self.needs, strict=True):
            total += needs.of_ranks(owners).missing(pieces) * (layers * (self.items // needs.items))
        return total


def granule_bounds(length: int, ranks: int) -> Tensor:
    """The edges of granules: an even number per rank, of equal size up to one position.

    >>> granule_bounds(7, 2).tolist()
    [0, 1, 3, 5, 7]
    """
    halves = max(length // (2 * ranks * GRANULE), min(FEWEST_HALVES, length // (2 * ranks)))
    granules = 2 * ranks * max(1, min(MOST_HALVES, halves))
    return torch.arange(granules + 1) * length // granules


def check_has_ranges(mask: Mask) -> None:
    """Check that a layout can be made for a mask."""
    if not mask.has_ranges:
        raise NoRangeForm(
            f"{mask!r} cannot be spread over ranks",
            [f"a layout needs the keys of each query as ranges: {mask.range_obstacle}"],
            advice="Write the mask with window, documents, prefix, chunks, tree or ranges(starts, ends), or run it on "
            "one device.",
        )


def spans_of(mask: Mask, length: int) -> Spans:
    """The ranges of a mask for a whole sequence, on the CPU; a layout is made from nothing else."""
    check_has_ranges(mask)
    return mask.spans(length)
