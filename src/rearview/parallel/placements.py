"""Placements: ways to give the granules of a sequence to ranks. Each returns the rank of every granule.

    >>> from rearview import causal
    >>> work = Workload.of([causal()], length=8, ranks=2)
    >>> contiguous(work).tolist(), head_tail(work).tolist()
    ([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 0, 0])

All of them give every rank the same number of granules, and so of tokens up to one per granule: the memory of a rank,
and its work outside of attention, depend on the tokens alone.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rearview.parallel.balancing import balanced
from rearview.parallel.workload import Workload


def contiguous(work: Workload) -> Tensor:
    """One run of neighbouring positions per rank: the fewest keys travel; a causal mask is badly balanced."""
    return torch.arange(work.granules) * work.ranks // work.granules


def head_tail(work: Workload) -> Tensor:
    """Two runs per rank, one from each end of the sequence: a causal mask is balanced."""
    run = torch.arange(work.granules) * 2 * work.ranks // work.granules
    return torch.minimum(run, 2 * work.ranks - 1 - run)


def dealt(work: Workload) -> Tensor:
    """Granules dealt from the heaviest to the lightest, back and forth: any mask is balanced, most keys travel."""
    order = work.area.argsort(descending=True, stable=True)
    turn, seat = torch.arange(work.granules) // work.ranks, torch.arange(work.granules) % work.ranks
    owners = torch.empty_like(order)
    owners[order] = torch.where(turn % 2 == 0, seat, work.ranks - 1 - seat)
    return owners


def area(work: Workload) -> Tensor:
    """Contiguous, then neighbouring granules are exchanged between heavy and light ranks until the work is balanced."""
    return balanced(work, contiguous(work))


PLACEMENTS: dict[str, Callable[[Workload], Tensor]] = {
    "contiguous": contiguous,
    "head-tail": head_tail,
    "area": area,
    "dealt": dealt,
}
