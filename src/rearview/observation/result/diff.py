"""What changed between two runs over the same tokens: with another model, another mask or another kernel.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal, window
>>> from rearview.observation import observe
>>> layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 6, 8)
>>> with observe(layer) as before:
...     out = layer(x)
>>> with observe(layer) as after:
...     out = layer(x, mask=window(2))
>>> change = before.diff(after)
>>> bool((change.layers[0].entropy < 0).all())    # a window hears fewer keys
True
>>> change.map(0, 0).shape    # after - before
torch.Size([6, 6])
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.drawing.cells import counted
from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.observation.result.display import Display
from rearview.observation.result.layer import Layer
from rearview.observation.result.maps import pooled

if TYPE_CHECKING:
    from rearview.observation.result.observation import Observation
    from rearview.observation.views.layer_change import LayerChange


@dataclass(frozen=True, eq=False)
class LayerDiff:
    """One layer of both runs; each figure is [heads].

    Args:
        before, after: the layer in each run.
        maps: the pooled maps, after - before: [heads, rows, columns].
        largest: the largest absolute change of a cell of the map.
        moved: the share of attention that moved to another bin of keys, mean over the rows of the map: 0 to 1.
        kl: KL(before || after) of the rows of the maps, mean, in nats; inf where a bin that was heard no longer is.
        entropy: the change of the mean entropy, in nats.
        sinks: the change of the share of the first 4 keys.
        received: the share of attention that moved to another key, by the totals that keys received: 0 to 1.
    """

    before: Layer
    after: Layer
    maps: Tensor
    largest: Tensor
    moved: Tensor
    kl: Tensor
    entropy: Tensor
    sinks: Tensor
    received: Tensor

    @property
    def name(self) -> str:
        """The name of the layer in the first run."""
        return self.before.name

    @property
    def index(self) -> int:
        """The number of the layer in the first run."""
        return self.before.index

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads that were watched in both runs."""
        return self.before.heads


@dataclass(frozen=True)
class HeadChange:
    """How much one head changed: the largest change of its map, and the share of attention that moved."""

    layer: int
    head: int
    largest: float
    moved: float


class ObservationDiff(Display):
    """What changed between two observations, layer by layer; `before.diff(after)` returns it."""

    def __init__(self, before: Observation, after: Observation, layers: tuple[LayerDiff, ...], item: int):
        self.before, self.after, self.layers, self.item = before, after, layers, item

    @classmethod
    def of(cls, before: Observation, after: Observation, *, item: int = 0) -> ObservationDiff:
        from rearview.observation.result.observation import Observation

        if not isinstance(after, Observation):
            raise BadArgument("other", expected="an Observation", got=type(after).__name__)
        pairs = _pairs(before, after)
        for pair in pairs:
            for layer in pair:
                before._check_item(layer, item)
        return cls(before, after, tuple(_layer_diff(*pair, before, after, item) for pair in pairs), item)

    @property
    def headline(self) -> str:
        """The title of drawings."""
        before, after = self.before.title, self.after.title
        return "What changed" if before == after else f"What changed from {before} to {after}"

    @property
    def length(self) -> int:
        """The number of positions of the sequence, the same in both runs."""
        return self.before.length

    def layer(self, which: int | str) -> LayerDiff:
        """A layer, by its number or name in the first run."""
        found = self.before.layer(which)
        return next(layer for layer in self.layers if layer.before is found)

    def map(self, layer: int | str, head: int) -> Tensor:
        """The pooled map, after - before: [rows, columns]. Rows sum to 0."""
        found = self.layer(layer)
        return found.maps[found.before.row_of(head)]

    def largest(self, k: int = 10) -> list[HeadChange]:
        """The heads that changed most, by the share of attention that moved."""
        k = whole_number(k, "k", at_least=1)
        changes = [
            HeadChange(layer.index, head, layer.largest[row].item(), layer.moved[row].item())
            for layer in self.layers
            for row, head in enumerate(layer.heads)
        ]
        return sorted(changes, key=lambda change: (-change.moved, change.layer, change.head))[:k]

    def describe(self) -> str:
        """A table of the figures of each layer, mean over its heads."""
        lines = [repr(self), "", "layer  moved   largest  KL       entropy  first 4  name"]
        for layer in self.layers:
            moved, entropy, sinks = (float(x.mean()) for x in (layer.moved, layer.entropy, layer.sinks))
            lines.append(
                f"{layer.index:>5}  {100 * moved:>5.1f} %  {float(layer.largest.max()):<7.4f}  "
                f"{float(layer.kl.mean()):<7.4f}  {entropy:+.4f}  {100 * sinks:+6.1f} %  {layer.name}"
            )
        return "\n".join(lines)

    def __repr__(self) -> str:
        moved = max((float(layer.moved.max()) for layer in self.layers), default=0.0)
        count = f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)}"
        return f"ObservationDiff({count}, at most {100 * moved:.1f} % of a head's attention moved)"

    def _views(
        self, layer: int | str | Layer | None = None, *, item: int = 0, exact_up_to: int = 0
    ) -> Sequence[LayerChange]:
        from rearview.observation.views.layer_change import changes_of

        if item not in (0, self.item):
            advice = f"Ask for it in the difference: before.diff(after, item={item})."
            raise BadArgument("item", expected=f"{self.item}, that of the difference", got=repr(item), advice=advice)
        changes = changes_of(self, exact_up_to=exact_up_to)
        if layer is None:
            return changes
        wanted = self.layer(layer if isinstance(layer, (int, str)) else layer.name)
        return [change for change in changes if change.diff is wanted]

    def _check_scale(self, scale: str) -> None:
        from rearview.observation.views.scales import CHANGE_SCALES, check_scale

        check_scale(scale, CHANGE_SCALES)


def _pairs(before: Observation, after: Observation) -> list[tuple[Layer, Layer]]:
    names = [layer.name for layer in before.layers]
    if sorted(names) == sorted(layer.name for layer in after.layers):
        pairs = [(layer, after.layer(layer.name)) for layer in before.layers]
    else:
        # Two models may have different names for the same layers.
        pairs = list(zip(before.layers, after.layers, strict=False)) if len(names) == len(after.layers) else []
    if not pairs:
        got = f"{counted(len(after.layers), 'layer', 'layers')} instead of {len(names)}"
        raise BadArgument("other", expected="a run with the same layers", got=got, advice="Watch the same layers=.")
    for one, other in pairs:
        for what, mine, theirs in (
            ("attention of the kind", one.kind, other.kind),
            ("heads", one.heads, other.heads),
            ("positions", _positions(one), _positions(other)),
        ):
            if mine != theirs:
                advice = "Run both over the same tokens, with the same heads=."
                raise BadArgument("other", expected=f"{what} {mine} in {one.name}", got=theirs, advice=advice)
    return pairs


def _positions(layer: Layer) -> str:
    frame = layer.statistics.frame
    return f"{frame.q_start} to {frame.q_end - 1} over {counted(frame.k_len, 'key', 'keys')}"


def _layer_diff(one: Layer, other: Layer, before: Observation, after: Observation, item: int) -> LayerDiff:
    first, second, heard = _maps(one, other, item)
    maps = second - first
    rows = heard.sum(-1).clamp(min=1)
    kl = torch.where(first > 0, first * (first / second).log(), torch.zeros_like(first)).sum(-1)
    received = [layer.statistics.received[item] for layer in (one, other)]
    entropy = [layer.statistics.entropy[item].sum(-1) / layer.heard_rows(item) for layer in (one, other)]
    return LayerDiff(
        one,
        other,
        maps=maps,
        largest=maps.abs().flatten(1).amax(-1),
        moved=(maps.abs().sum(-1) / 2 * heard).sum(-1) / rows,
        # Rounding may leave it slightly below 0.
        kl=((kl * heard).sum(-1) / rows).clamp(min=0),
        entropy=entropy[1] - entropy[0],
        sinks=after.sinks(4, other, item=item) - before.sinks(4, one, item=item),
        received=(received[1] - received[0]).abs().sum(-1) / 2 / one.heard_rows(item),
    )


def _maps(one: Layer, other: Layer, item: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both pooled maps [heads, rows, columns] with the same bins, and the rows that heard anything in either."""
    widths = [layer.statistics.bin_width for layer in (one, other)]
    if 0 in widths:
        raise BadArgument("other", expected="two runs with maps", got="one with map_size=None")
    width = math.lcm(*widths)
    if width not in widths:
        got = f"bins of {widths[0]} and of {widths[1]} positions in {one.name}"
        raise BadArgument("other", expected="maps that fit", got=got, advice="Watch both with the same map_size=.")
    maps, rows = zip(
        *(pooled(layer.statistics, (item,), width // layer.statistics.bin_width) for layer in (one, other)), strict=True
    )
    return maps[0], maps[1], (rows[0] > 0) | (rows[1] > 0)
