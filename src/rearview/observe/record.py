"""The calls of a layer, stitched: a call that continues the sequence is joined, any other begins a new one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

import torch
from torch import Tensor

from rearview.attention.statistics import Links, Statistics
from rearview.errors import Unsupported
from rearview.observe.glance import Glance
from rearview.observe.kept import AUTO_BYTES, Kept, cost
from rearview.observe.layer import Layer
from rearview.observe.seen import Seen


@dataclass
class Budget:
    """Bytes for queries and keys, of all layers together. `limit` None: no limit, 0: nothing is kept."""

    limit: int | None
    spent: int = 0

    @classmethod
    def of(cls, keep: str | bool | int | None) -> Budget:
        if keep == "auto":
            return cls(AUTO_BYTES)
        return cls(None if keep is True else 0 if keep in (None, False) else int(keep))

    def take(self, amount: int) -> bool:
        """Is there room? If so it is taken."""
        if self.limit is not None and self.spent + amount > self.limit:
            return False
        self.spent += amount
        return True


@dataclass
class Recorder:
    """Puts what one layer does into `seen`."""

    seen: Seen
    name: str
    kind: str
    index: int
    # None watches all heads.
    heads: tuple[int, ...] | None
    map_size: int | None
    links: int
    budget: Budget
    runs: int = 0
    _statistics: Statistics | None = None
    _kept: Kept | None = None
    _why_not: str = field(default="")

    def see(self, glance: Glance) -> None:
        """Take in one call. It changes nothing that the model computes, and no random numbers are drawn."""
        # What a model makes in inference mode could not be worked with afterwards.
        with torch.inference_mode(False), torch.no_grad():
            if not self._continues(glance):
                self._begin()
            self._keep(glance)
            self._statistics = glance.statistics(self._statistics, map_size=self.map_size, links=self.links)
        count = glance.query.shape[1]
        heads = tuple(range(count)) if self.heads is None else self.heads
        self.seen._put(Layer(self.name, self.kind, self.index, heads, self._statistics, self._kept, self._why_not))
        self.seen.runs = max(self.seen.runs, self.runs)

    def finish(self) -> None:
        """Bring what was seen to the CPU, where it is looked at."""
        layer = self.seen._layers.get(self.name)
        if layer is not None and layer.statistics.lse.device.type != "cpu":
            self.seen._put(replace(layer, statistics=_on_cpu(layer.statistics)))

    def _continues(self, glance: Glance) -> bool:
        if self._statistics is None or glance.q_start == 0 or glance.q_start != self._statistics.frame.q_end:
            return False
        batch = self._statistics.lse.shape[0]
        if batch != glance.query.shape[0]:
            raise Unsupported(
                f"A batch that goes from {batch} to {glance.query.shape[0]} sequences cannot be watched",
                ["what was seen of the earlier tokens belongs to other sequences"],
                advice="Watch sequences that end together, or one at a time.",
            )
        return True

    def _begin(self) -> None:
        if self._kept is not None:
            self.budget.spent -= self._kept.bytes
        self.runs += 1
        self._statistics, self._kept, self._why_not = None, None, ""

    def _keep(self, glance: Glance) -> None:
        if self.budget.limit == 0:
            self._why_not = "queries and keys were not kept: keep=None"
        if self._why_not:
            return
        held = self._kept
        new = glance if held is None else replace(glance, key=glance.key[:, :, held.k_len :])
        if self.budget.take(cost(new)):
            self._kept = Kept((glance,)) if held is None else held.and_then(glance)
            return
        self.budget.spent -= 0 if held is None else held.bytes
        self._kept = None
        assert self.budget.limit is not None
        self._why_not = f"queries and keys were more than keep allows, {self.budget.limit / 2**20:,.0f} MiB in all"


def _on_cpu(found: Statistics) -> Statistics:
    links = Links(*(getattr(found.links, each.name).cpu() for each in fields(found.links)))
    moved = {each.name: getattr(found, each.name) for each in fields(found)}
    tensors = {name: value.cpu() for name, value in moved.items() if isinstance(value, Tensor)}
    return replace(found, links=links, **tensors)
