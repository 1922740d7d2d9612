"""What changed from one run to another over the same tokens: another model, another mask, another kernel.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal, window
>>> from rearview.observe import observe
>>> layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 6, 8)
>>> with observe(layer) as before:
...     out = layer(x)
>>> with observe(layer) as after:
...     out = layer(x, mask=window(2))
>>> change = before.diff(after)
>>> bool((change.layers[0].entropy < 0).all())    # a window listens to fewer
True
>>> change.map(0, 0).shape    # after - before
torch.Size([6, 6])
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.masks.labels import counted
from rearview.observe.layer import Layer
from rearview.observe.maps import merged
from rearview.observe.showing import Showing

if TYPE_CHECKING:
    from rearview.observe.seen import Seen


@dataclass(frozen=True, eq=False)
class LayerDiff:
    """One layer of both runs; each figure is [heads].

    Args:
        before, after: the layer in each run.
        maps: [heads, rows, columns] pooled map, after - before.
        largest: the largest change of a cell of the map, in size.
        moved: the share of attention that went to another bin of keys, the mean of all rows of the map: 0 to 1.
        kl: KL(before || after) of the rows of the maps, the mean, in nats; inf where a bin that was heard no longer is.
        entropy: the change of the mean entropy, in nats.
        sinks: the change of the share of the first 4 keys.
        received: the share of attention that went to another key, by what each key received in all: 0 to 1.
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
        """The name of the layer, in the first run."""
        return self.before.name

    @property
    def index(self) -> int:
        """The number of the layer, in the first run."""
        return self.before.index

    @property
    def heads(self) -> tuple[int, ...]:
        """The heads that were watched in both."""
        return self.before.heads


@dataclass(frozen=True)
class HeadChange:
    """How much one head changed: the largest change of its map, and the share of attention that moved."""

    layer: int
    head: int
    largest: float
    moved: float


class SeenDiff(Showing):
    """What `seen.diff(other)` found, layer by layer."""

    def __init__(self, before: Seen, after: Seen, layers: tuple[LayerDiff, ...], item: int):
        self.before, self.after, self.layers, self.item = before, after, layers, item

    @classmethod
    def of(cls, before: Seen, after: Seen, *, item: int = 0) -> SeenDiff:
        from rearview.observe.seen import Seen

        if not isinstance(after, Seen):
            raise BadArgument("other", expected="what another observe saw", came=type(after).__name__)
        pairs = _pairs(before, after)
        for pair in pairs:
            for layer in pair:
                before._check_item(layer, item)
        return cls(before, after, tuple(_layer_diff(*pair, before, after, item) for pair in pairs), item)

    def layer(self, which: int | str) -> LayerDiff:
        """A layer by its number or name in the first run."""
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
        """The figures of each layer, the mean of its heads."""
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
        return f"SeenDiff({count}, at most {100 * moved:.1f} % of a head's attention moved)"


def _pairs(before: Seen, after: Seen) -> list[tuple[Layer, Layer]]:
    ours, theirs = before.layers, after.layers
    names = [layer.name for layer in ours]
    if sorted(names) == sorted(layer.name for layer in theirs):
        pairs = [(layer, after.layer(layer.name)) for layer in ours]
    else:
        # Two models may name the same layers differently.
        pairs = list(zip(ours, theirs, strict=False)) if len(ours) == len(theirs) else []
    if not pairs:
        came = f"{counted(len(theirs), 'layer', 'layers')} against {len(ours)}"
        raise BadArgument("other", expected="a run with the same layers", came=came, advice="Watch the same layers=.")
    for one, other in pairs:
        for what, mine, other_s in (
            ("attention of the kind", one.kind, other.kind),
            ("heads", one.heads, other.heads),
            ("positions", _positions(one), _positions(other)),
        ):
            if mine != other_s:
                advice = "Run both over the same tokens, with the same heads=."
                raise BadArgument("other", expected=f"{what} {mine} in {one.name}", came=other_s, advice=advice)
    return pairs


def _positions(layer: Layer) -> str:
    frame = layer.statistics.frame
    return f"{frame.q_start} to {frame.q_end - 1} over {counted(frame.k_len, 'key', 'keys')}"


def _layer_diff(one: Layer, other: Layer, before: Seen, after: Seen, item: int) -> LayerDiff:
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
        # Rounding leaves a little below 0.
        kl=((kl * heard).sum(-1) / rows).clamp(min=0),
        entropy=entropy[1] - entropy[0],
        sinks=after.sinks(4, other, item=item) - before.sinks(4, one, item=item),
        received=(received[1] - received[0]).abs().sum(-1) / 2 / one.heard_rows(item),
    )


def _maps(one: Layer, other: Layer, item: int) -> tuple[Tensor, Tensor, Tensor]:
    """Both pooled maps [heads, rows, columns] with the same bins, and which rows are heard in either."""
    widths = [layer.statistics.bin_width for layer in (one, other)]
    if 0 in widths:
        raise BadArgument("other", expected="two runs with maps", came="one with map_size=None")
    width = math.lcm(*widths)
    if width not in widths:
        came = f"bins of {widths[0]} and of {widths[1]} positions in {one.name}"
        raise BadArgument("other", expected="maps that fit", came=came, advice="Watch both with the same map_size=.")
    pooled, rows = [], []
    for layer in (one, other):
        found = layer.statistics
        assert found.map is not None
        assert found.rows_heard is not None
        factor = width // found.bin_width
        parts = [
            merged(sums, heard, factor) for sums, heard in zip(found.map[item], found.rows_heard[item], strict=True)
        ]
        sums, heard = (torch.stack(part) for part in zip(*parts, strict=True))
        pooled.append(sums / heard.clamp(min=1).unsqueeze(-1))
        rows.append(heard > 0)
    return pooled[0], pooled[1], rows[0] | rows[1]
