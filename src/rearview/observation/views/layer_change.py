"""One layer of two runs as every drawing shows their difference: before and after, with the same bins.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal, window
>>> from rearview.observation import observe
>>> layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 6, 8)
>>> with observe(layer) as before:
...     out = layer(x)
>>> with observe(layer) as after:
...     out = layer(x, mask=causal() & window(2))
>>> change = changes_of(before.diff(after))[0]
>>> change.map.shape, change.sentences(0)[0].endswith("went to other keys.")
(torch.Size([2, 6, 6]), True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from rearview.observation.views.layer_view import LayerView
from rearview.observation.views.scales import CHANGE_SCALES, ShadedMap, shaded_change
from rearview.observation.views.sentences import CHANGE_METRICS, Metrics, change_sentences

if TYPE_CHECKING:
    from rearview.observation.result.diff import LayerDiff, ObservationDiff
    from rearview.observation.result.layer import Link
    from rearview.observation.views.exact_head import ExactHead


@dataclass(frozen=True, eq=False)
class LayerChange:
    """One layer of both runs. Sizes and labels are the same in both; each figure is after - before."""

    before: LayerView
    after: LayerView
    diff: LayerDiff

    is_change: ClassVar[bool] = True
    metrics: ClassVar[Metrics] = CHANGE_METRICS
    scales: ClassVar[tuple[str, ...]] = CHANGE_SCALES

    @property
    def base(self) -> LayerView:
        """The view that sizes and labels are read from."""
        return self.before

    @property
    def map(self) -> Tensor:
        """[heads, rows, columns], after - before."""
        return self.after.map - self.before.map

    @property
    def uniform(self) -> Tensor:
        """What uniform attention would give under either mask: 0 where neither may hear."""
        return torch.maximum(*torch.broadcast_tensors(self.before.uniform, self.after.uniform))

    @property
    def contrast(self) -> Tensor:
        """The share of attention that moved, [heads]."""
        return self.diff.moved

    @property
    def received(self) -> Tensor:
        """The change of what each key receives, [heads, keys]."""
        return self.after.received - self.before.received

    @property
    def expected(self) -> Tensor:
        """What each key would receive from uniform attention before the change."""
        return self.before.expected

    @property
    def entropy(self) -> Tensor:
        """The change of the entropy, [heads, queries], nats."""
        return self.after.entropy - self.before.entropy

    @property
    def histogram(self) -> Tensor:
        """The change of the share of attention by distance, [heads, bins]."""
        before, after = (view.histogram / view.heard.clamp(min=1).unsqueeze(-1) for view in (self.before, self.after))
        return after - before

    def coarser(self, size: int) -> LayerChange:
        """The same change with at most `size` bins per side."""
        return LayerChange(self.before.coarser(size), self.after.coarser(size), self.diff)

    def figures(self, row: int) -> dict[str, float]:
        """One number for each of `metrics`, for the head in this row."""
        return {name: float(getattr(self.diff, name)[row]) for name in self.metrics}

    def sentences(self, row: int) -> list[str]:
        """What changed in the head in this row."""
        return change_sentences(self.figures(row))

    def shaded(self, row: int, scale: str) -> ShadedMap:
        """The change of the map of the head in this row, on one of `scales`."""
        return shaded_change(self.map[row], self.uniform[min(row, len(self.uniform) - 1)], scale)

    def links(self, row: int, *, k: int) -> list[Link]:
        """A difference has no links of its own."""
        return []

    def exact_head(self, row: int) -> ExactHead | None:
        """A difference is shown in bins only."""
        return None

    def page_maps(self) -> dict[str, Tensor]:
        """What the page shows besides the change and uniform attention."""
        return {"before": self.before.map}


# What a drawing shows: a layer of one run, or its change between two.
MapView = LayerView | LayerChange


def changes_of(diff: ObservationDiff, *, exact_up_to: int = 0) -> list[LayerChange]:
    """Every layer of a difference, in bins that both runs have."""
    changes = []
    for each in diff.layers:
        views = [
            LayerView.of(observation, layer, item=diff.item, exact_up_to=exact_up_to)
            for observation, layer in ((diff.before, each.before), (diff.after, each.after))
        ]
        width = math.lcm(*(view.width for view in views))
        before, after = (view.joined(width // view.width) for view in views)
        changes.append(LayerChange(before, after, each))
    return changes
