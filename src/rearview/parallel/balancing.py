"""Work moved from the ranks that have the most to those that have the least, while as few keys as possible travel.

Two ranks exchange chunks of equal size, a chunk being a few neighbouring granules. Each exchange is the one that adds
the fewest keys to what the two ranks receive, per area that it takes from the heavier one. Large chunks keep positions
together; small ones balance better. So several sizes of chunks are tried, and the placement that costs the least is
returned.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.parallel.workload import Workload

# Exchanges stop when the heaviest rank has at most this many times the mean.
TOLERANCE = 1.03
# How many of the lightest ranks are asked for a chunk, and how many pairs of chunks are compared in detail.
PARTNERS = 4
PAIRS = 48
# What balance and traffic count for, see `cost`.
TRAFFIC_WEIGHT = 0.5


def cost(work: Workload, owners: Tensor) -> float:
    """What a placement costs: the area of the slowest rank over the mean, minus 1, plus half of the keys received over
    those that an all-gather brings.

    The first term is the share of attention time lost by waiting for the slowest rank.
    """
    area, received = work.area_of(owners), work.received(owners)
    gathered = (work.ranks - 1) * work.length * work.items * sum(work.layers)
    slowest = work.ranks * int(area.max()) / max(1, int(area.sum()))
    return slowest - 1 + TRAFFIC_WEIGHT * int(received.sum()) / max(1, gathered)


def balanced(work: Workload, owners: Tensor) -> Tensor:
    """`owners` after exchanges between ranks; chunks of 1, 2, 4, ... granules are tried."""
    found = [owners]
    size = 1
    while size <= work.granules // work.ranks // 2:
        if work.granules // work.ranks % size == 0:
            found.append(_Chunks.of(work, owners, size).exchanged())
        size *= 2
    return min(found, key=lambda each: cost(work, each))


@dataclass(eq=False)
class _Chunks:
    """Chunks of `size` granules. Sets of granules (needed, held) are bits of Python integers."""

    size: int
    ranks: int
    area: list[int]
    needed: list[int]
    held: list[int]
    owner: list[int]

    @classmethod
    def of(cls, work: Workload, owners: Tensor, size: int) -> _Chunks:
        count = work.granules // size
        needed = [0] * count
        for needs in work.needs:
            first = torch.searchsorted(work.bounds, needs.starts, right=True) - 1
            last = torch.searchsorted(work.bounds, needs.ends)
            for chunk, start, end in zip((needs.group // size).tolist(), first.tolist(), last.tolist(), strict=True):
                needed[chunk] |= (1 << end) - (1 << start)
        whole = (1 << size) - 1
        return cls(
            size,
            work.ranks,
            work.area.view(count, size).sum(1).tolist(),
            needed,
            [whole << (size * chunk) for chunk in range(count)],
            owners[::size].tolist(),
        )

    def exchanged(self) -> Tensor:
        chunks: list[list[int]] = [[] for _ in range(self.ranks)]
        for chunk, rank in enumerate(self.owner):
            chunks[rank].append(chunk)
        work = [sum(self.area[chunk] for chunk in own) for own in chunks]
        goal = sum(work) * TOLERANCE / self.ranks
        # Every exchange lowers the heaviest rank, or the loop ends.
        for _ in range(8 * self.ranks + 64):
            heavy = max(range(self.ranks), key=work.__getitem__)
            if work[heavy] <= goal:
                break
            best = None
            for light in sorted(range(self.ranks), key=work.__getitem__)[:PARTNERS]:
                found = self._best_pair(chunks[heavy], chunks[light], work[heavy], work[light], goal)
                if found is not None and (best is None or found[0] < best[0]):
                    best = (*found, light)
            if best is None:
                break
            _, given, taken, light = best
            chunks[heavy].remove(given)
            chunks[light].remove(taken)
            chunks[heavy].append(taken)
            chunks[light].append(given)
            moved = self.area[given] - self.area[taken]
            work[heavy] -= moved
            work[light] += moved
        owner = torch.empty(len(self.owner), dtype=torch.long)
        for rank, own in enumerate(chunks):
            owner[own] = rank
        return owner.repeat_interleave(self.size)

    def _best_pair(
        self, heavy: list[int], light: list[int], most: int, least: int, goal: float
    ) -> tuple[float, int, int] | None:
        """The chunks that the two ranks should exchange, with the keys that this adds per area that it moves."""
        moved = torch.tensor([self.area[n] for n in heavy]).view(-1, 1) - torch.tensor([self.area[n] for n in light])
        # Beyond half of the difference the other rank becomes the heavier one.
        gain = torch.minimum(moved, most - least - moved).clamp(max=max(1, int(most - goal)))
        # Stable, so that all ranks choose alike among equals.
        gains, places = (each[:PAIRS] for each in gain.flatten().sort(descending=True, stable=True))
        without_heavy, without_light = self._without_each(heavy), self._without_each(light)
        before = self._missing(heavy) + self._missing(light)
        best = None
        for value, place in zip(gains.tolist(), places.tolist(), strict=True):
            if value <= 0:
                break
            i, j = divmod(place, len(light))
            x, y = heavy[i], light[j]
            after = 0
            for (needed, held), new in ((without_heavy[i], y), (without_light[j], x)):
                after += ((needed | self.needed[new]) & ~(held | self.held[new])).bit_count()
            score = (after - before + self.size / 8) / value
            if best is None or score < best[0]:
                best = (score, x, y)
        return best

    def _missing(self, own: list[int]) -> int:
        needed = held = 0
        for chunk in own:
            needed, held = needed | self.needed[chunk], held | self.held[chunk]
        return (needed & ~held).bit_count()

    def _without_each(self, own: list[int]) -> list[tuple[int, int]]:
        """What the rank needs and holds without each of its chunks, by unions from both ends."""
        after = [(0, 0)]
        for chunk in reversed(own):
            needed, held = after[-1]
            after.append((needed | self.needed[chunk], held | self.held[chunk]))
        found, needed, held = [], 0, 0
        for n, chunk in enumerate(own):
            rest = after[len(own) - 1 - n]
            found.append((needed | rest[0], held | rest[1]))
            needed, held = needed | self.needed[chunk], held | self.held[chunk]
        return found
