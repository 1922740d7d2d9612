"""The data of the page of `html.py`: for each layer its sizes, labels, figures and sentences; the numbers are packed.

>>> import torch
>>> from rearview import MaskedSelfAttention
>>> from rearview.observation import observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 3, 8))
>>> contents = page_contents(seen, seen._views(), PageDetail())
>>> contents["facts"], contents["layers"][0]["arrays"]["map"]
(['1 layer, 2 heads', '3 positions'], {'at': 0, 'code': 'f4', 'shape': [2, 3, 3]})
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rearview.attention.stats.bins import merged
from rearview.drawing.cells import counted
from rearview.observation.views.exact_head import ExactHead
from rearview.observation.views.layer_change import MapView
from rearview.observation.views.layer_view import LayerView, short_name
from rearview.observation.views.packed_arrays import PackedArrays
from rearview.observation.views.sentences import distances

if TYPE_CHECKING:
    from rearview.observation.result.display import Display

LINKS = 20
# The largest number of tokens that the page writes out as text.
MOST_WRITTEN = 2000

# An object of the page's JSON.
Entry = dict[str, Any]
# A head: the index of its layer among those shown, and its row in that layer.
HeadIndex = tuple[int, int]


@dataclass(frozen=True)
class PageDetail:
    """How much a page holds.

    Args:
        exact_up_to: the largest number of positions with every weight in the page.
        bins: the most bins per side of a map; None for all of them.
        points: the most points of the curves next to a map.
        short: whether maps are stored with three digits.
    """

    exact_up_to: int = 0
    bins: int | None = None
    points: int = 1024
    short: bool = False


def head_entries(views: Sequence[MapView]) -> list[list[Entry]]:
    """For every layer and head its figures, sentences and links: the same at any detail."""
    return [
        [
            {
                "head": head,
                "figures": {name: _written(value) for name, value in view.figures(row).items()},
                "sentences": view.sentences(row),
                "links": [[link.query, link.key, _written(link.weight)] for link in view.links(row, k=LINKS)],
            }
            for row, head in enumerate(view.base.layer.heads)
        ]
        for view in views
    ]


def page_contents(
    display: Display,
    views: Sequence[MapView],
    detail: PageDetail,
    *,
    heads: list[list[Entry]] | None = None,
    title: str | None = None,
    bins_before: int = 0,
    exact: Mapping[HeadIndex, ExactHead] | None = None,
    arrays: PackedArrays | None = None,
) -> Entry:
    """The data of the page.

    Args:
        heads: what `head_entries` returned.
        bins_before: the number of bins of the maps before they were reduced to fit.
        exact: heads whose exact weights the page computes.
        arrays: where the numbers are packed, for a page that fetches them; by default they are text in the page.
    """
    block = PackedArrays(short=detail.short) if arrays is None else arrays
    sets, exact = _LabelSets(), exact or {}
    bases = [view.base for view in views]
    several = len({base.layer.kind for base in bases}) > 1
    layers = []
    for n, (view, described) in enumerate(zip(views, heads or head_entries(views), strict=True)):
        layer = _layer(view.base, sets, detail.points, several=several)
        keys: dict[int, Entry] = {}
        layer["heads"] = [
            {**each, "exact": exact[n, row].put(block, keys)} if (n, row) in exact else each
            for row, each in enumerate(described)
        ]
        maps = {"map": view.map, "uniform": view.uniform, **view.page_maps()}
        layer["arrays"] = {
            **{name: block.add(values) for name, values in maps.items()},
            **_curves(block, view, layer["keyStep"], layer["queryStep"]),
            "histogram": block.add(view.histogram),
        }
        layers.append(layer)
    return {
        "kind": "diff" if views[0].is_change else "seen",
        "title": title or display.headline,
        "facts": _facts(bases, display.length),
        "notes": _notes(bases, detail, bins_before),
        "scales": views[0].scales,
        "metrics": views[0].metrics,
        "labels": sets.sets,
        "mostWritten": MOST_WRITTEN,
        "first": by_contrast(views)[0],
        "layers": layers,
        **({"block": block.text()} if arrays is None else {}),
    }


def _facts(views: list[LayerView], length: int) -> list[str]:
    heads = sum(len(view.layer.heads) for view in views)
    facts = [f"{counted(len(views), 'layer', 'layers')}, {counted(heads, 'head', 'heads')}"]
    source = max((view.k_len for view in views if view.layer.kind == "cross"), default=0)
    facts.append(counted(length, "position", "positions") + (f", {source:,} of the source" if source else ""))
    batch = views[0].layer.batch
    return [*facts, f"item {views[0].item} of a batch of {batch}"] if batch > 1 else facts


def _notes(views: list[LayerView], detail: PageDetail, bins_before: int) -> list[str]:
    notes = []
    if (most := max(max(view.map.shape[-2:]) for view in views)) < bins_before:
        notes.append(f"To keep the page small, its maps have up to {most} bins per side instead of {bins_before}.")
    if detail.short:
        notes.append("To keep the page small, the weights of its maps are stored with three digits.")
    return notes


def _layer(view: LayerView, sets: _LabelSets, points: int, *, several: bool) -> Entry:
    layer = view.layer
    kind = f" {layer.kind}" if several else ""
    return {
        "name": layer.name,
        "kind": layer.kind,
        "title": f"Layer {layer.index}{kind}",
        "short": short_name(layer, several_kinds=several),
        "choice": f"{layer.index}  {layer.name}",
        "start": view.start,
        "queries": view.stop - view.start,
        "keys": view.k_len,
        "top": view.top,
        "bin": view.width,
        "rows": view.map.shape[1],
        "columns": view.map.shape[2],
        "keyStep": -(-view.k_len // points),
        "queryStep": -(-(view.stop - view.start) // points),
        "querySet": sets.number(view.query_labels),
        "keySet": sets.number(view.key_labels),
        "edges": distances(view),
        "resolution": _resolution(view),
        "elsewhere": _elsewhere(view),
    }


def _curves(arrays: PackedArrays, view: MapView, key_step: int, query_step: int) -> dict[str, Entry]:
    entropy = view.entropy
    counts = merged(entropy.new_ones(entropy.shape[-1]), query_step, (-1,))
    return {
        "received": arrays.add(merged(view.received, key_step, (-1,))),
        "expected": arrays.add(merged(view.expected, key_step, (-1,))),
        "entropy": arrays.add(merged(entropy, query_step, (-1,)) / counts),
    }


def _resolution(view: LayerView) -> str:
    if view.is_exact:
        return "One cell is one query and one key, with its exact weight."
    size = f"{counted(view.width, 'query', 'queries')} x {counted(view.width, 'key', 'keys')}"
    return f"Bins of {view.width} tokens: one cell is {size}, the sum over keys and the mean over queries."


def _elsewhere(view: LayerView) -> str:
    """Where exact weights can be had if the page does not have them."""
    if view.is_exact:
        return ""
    if view.layer.retained is None:
        return "Queries and keys were not kept, so there are no exact weights."
    return f"seen.tile({view.layer.index}, head, rows, cols) gives exact weights."


def _written(value: float) -> float | None:
    """A number that JSON can hold, in as many digits as float32 has."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def by_contrast(views: Sequence[MapView]) -> list[HeadIndex]:
    """All heads, the most informative first."""
    numbers = [view.contrast.tolist() for view in views]
    places = [(n, row) for n, heads in enumerate(numbers) for row in range(len(heads))]
    return sorted(places, key=lambda place: -numbers[place[0]][place[1]])


class _LabelSets:
    """Lists of labels, each stored once: most layers share them."""

    def __init__(self) -> None:
        self.sets: list[list[str]] = []

    def number(self, labels: list[str] | None) -> int | None:
        if labels is None:
            return None
        if labels not in self.sets:
            self.sets.append(labels)
        return self.sets.index(labels)
