"""What the page of `html.py` carries: for each layer its sizes, labels, figures and sentences; the numbers in a block.

>>> import torch
>>> from rearview import MaskedSelfAttention
>>> from rearview.observe import observe
>>> from rearview.observe.looking import look_at
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 3, 8))
>>> contents = contents_of(seen, [look_at(seen, seen.layers[0])], Room())
>>> contents["facts"], contents["layers"][0]["arrays"]["map"]
(['1 layer, 2 heads', '3 positions'], {'at': 0, 'code': 'f4', 'shape': [2, 3, 3]})
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from rearview.attention.statistics.bins import merged
from rearview.masks.labels import counted
from rearview.observe.block import Block
from rearview.observe.changing import CHANGE_METRICS, Change, change_figures, change_sentences
from rearview.observe.diff import SeenDiff
from rearview.observe.looking import Look, short_name, telling_links
from rearview.observe.near import Near
from rearview.observe.scales import CHANGE_SCALES, SCALES
from rearview.observe.sentences import METRICS, distances, figures, sentences

if TYPE_CHECKING:
    from rearview.observe.seen import Seen

LINKS = 20
# The text is written out up to so many tokens.
MOST_WRITTEN = 2000
UNTITLED = "What attention does"


@dataclass(frozen=True)
class Room:
    """How much of it a page holds.

    Args:
        exact_up_to: every weight, up to so many positions.
        bins: of a map, at most; None for as many as there are.
        points: of the curves beside a map.
        short: maps are kept to three digits.
    """

    exact_up_to: int = 0
    bins: int | None = None
    points: int = 1024
    short: bool = False


Heads = list[list[dict[str, Any]]]
# A head: which of the layers that are shown, which row of that.
Place = tuple[int, int]


def heads_of(seen: Seen | SeenDiff, looks: list[Any]) -> Heads:
    """Of every layer and head the figures, sentences and links: the same however much room there is."""
    if isinstance(seen, SeenDiff):
        return [[_changed_head(change, row) for row in range(len(change.diff.heads))] for change in looks]
    return [[_head(seen, look, row) for row in range(len(look.layer.heads))] for look in looks]


def contents_of(
    seen: Seen,
    looks: list[Look],
    room: Room,
    *,
    heads: Heads | None = None,
    title: str | None = None,
    bins_before: int = 0,
    near: Mapping[Place, Near] | None = None,
) -> Any:
    """The page of a Seen.

    Args:
        bins_before: how many bins the maps had before they were made to fit.
        near: heads that can be looked at pair by pair, by their place.
    """
    block, sets, near = Block(short=room.short), _LabelSets(), near or {}
    layers = []
    for n, (look, described) in enumerate(zip(looks, heads or heads_of(seen, looks), strict=True)):
        layer = _layer(look, sets, room.points, several=len({each.kind for each in seen.layers}) > 1)
        keys: dict[int, Any] = {}
        layer["heads"] = [
            {**each, "near": near[n, row].put(block, keys)} if (n, row) in near else each
            for row, each in enumerate(described)
        ]
        layer["arrays"] = {
            "map": block.add(look.map),
            "uniform": block.add(look.uniform),
            "first": block.add(look.first),
            **_curves(block, layer, look.received, look.expected, look.entropy),
            "histogram": block.add(look.histogram),
        }
        layers.append(layer)
    return {
        "kind": "seen",
        "title": title or seen.title or UNTITLED,
        "facts": _facts(looks, seen.length),
        "notes": _notes(looks, room, bins_before),
        "scales": SCALES,
        "metrics": METRICS,
        "labels": sets.sets,
        "mostWritten": MOST_WRITTEN,
        "first": most_telling(looks)[0],
        "layers": layers,
        "block": block.text(),
    }


def changed_contents(
    diff: SeenDiff,
    changes: list[Change],
    room: Room,
    *,
    heads: Heads | None = None,
    title: str | None = None,
    bins_before: int = 0,
) -> Any:
    """The page of a SeenDiff."""
    block, sets = Block(short=room.short), _LabelSets()
    several = len({each.before.kind for each in diff.layers}) > 1
    layers = []
    for change, described in zip(changes, heads or heads_of(diff, changes), strict=True):
        before, after = change.before, change.after
        layer = _layer(before, sets, room.points, several=several)
        layer["heads"] = described
        shares = [look.histogram / look.heard.clamp(min=1).unsqueeze(-1) for look in (before, after)]
        layer["arrays"] = {
            "map": block.add(change.map),
            "before": block.add(before.map),
            "uniform": block.add(change.uniform),
            **_curves(block, layer, after.received - before.received, before.expected, after.entropy - before.entropy),
            "histogram": block.add(shares[1] - shares[0]),
        }
        layers.append(layer)
    names = (diff.before.title, diff.after.title)
    return {
        "kind": "diff",
        "title": title or ("What changed" if names[0] == names[1] else f"What changed from {names[0]} to {names[1]}"),
        "facts": _facts([change.before for change in changes], diff.before.length),
        "notes": _notes([change.before for change in changes], room, bins_before),
        "scales": CHANGE_SCALES,
        "metrics": CHANGE_METRICS,
        "labels": sets.sets,
        "mostWritten": MOST_WRITTEN,
        "first": _from_the_largest([change.diff.moved.tolist() for change in changes])[0],
        "layers": layers,
        "block": block.text(),
    }


def _facts(looks: list[Look], length: int) -> list[str]:
    heads = sum(len(look.layer.heads) for look in looks)
    facts = [f"{counted(len(looks), 'layer', 'layers')}, {counted(heads, 'head', 'heads')}"]
    source = max((look.k_len for look in looks if look.layer.kind == "cross"), default=0)
    facts.append(counted(length, "position", "positions") + (f", {source:,} of the source" if source else ""))
    batch = looks[0].layer.batch
    return [*facts, f"item {looks[0].item} of a batch of {batch}"] if batch > 1 else facts


def _notes(looks: list[Look], room: Room, bins_before: int) -> list[str]:
    notes = []
    if (most := max(max(look.map.shape[-2:]) for look in looks)) < bins_before:
        notes.append(f"So that the page stays small, its maps have up to {most} bins a side instead of {bins_before}.")
    if room.short:
        notes.append("So that the page stays small, the weights of its maps are kept to three digits.")
    return notes


def _layer(look: Look, sets: _LabelSets, points: int, *, several: bool) -> dict[str, Any]:
    layer = look.layer
    kind = f" {layer.kind}" if several else ""
    return {
        "name": layer.name,
        "kind": layer.kind,
        "title": f"Layer {layer.index}{kind}",
        "short": short_name(layer, several_kinds=several),
        "choice": f"{layer.index}  {layer.name}",
        "start": look.start,
        "queries": look.stop - look.start,
        "keys": look.k_len,
        "top": look.top,
        "bin": look.width,
        "rows": look.map.shape[1],
        "columns": look.map.shape[2],
        "keyStep": -(-look.k_len // points),
        "queryStep": -(-(look.stop - look.start) // points),
        "querySet": sets.number(look.query_labels),
        "keySet": sets.number(look.key_labels),
        "edges": distances(look),
        "resolution": _resolution(look),
        "elsewhere": _elsewhere(look),
    }


def _curves(
    block: Block, layer: dict[str, Any], received: Tensor, expected: Tensor, entropy: Tensor
) -> dict[str, dict[str, Any]]:
    keys, queries = layer["keyStep"], layer["queryStep"]
    counts = merged(entropy.new_ones(entropy.shape[-1]), queries, (-1,))
    return {
        "received": block.add(merged(received, keys, (-1,))),
        "expected": block.add(merged(expected, keys, (-1,))),
        "entropy": block.add(merged(entropy, queries, (-1,)) / counts),
    }


def _head(seen: Seen, look: Look, row: int) -> dict[str, Any]:
    number = look.layer.heads[row]
    links = telling_links(seen, look, row, k=LINKS)
    return {
        "head": number,
        "figures": {name: _written(value) for name, value in figures(look, row).items()},
        "sentences": sentences(look, row),
        "links": [[link.query, link.key, _written(link.weight)] for link in links],
    }


def _changed_head(change: Change, row: int) -> dict[str, Any]:
    return {
        "head": change.before.layer.heads[row],
        "figures": {name: _written(value) for name, value in change_figures(change, row).items()},
        "sentences": change_sentences(change, row),
        "links": [],
    }


def _resolution(look: Look) -> str:
    if look.is_exact:
        return "One cell is one query and one key, with its exact weight."
    size = f"{counted(look.width, 'query', 'queries')} x {counted(look.width, 'key', 'keys')}"
    return f"Bins of {look.width} tokens: one cell is {size}, the sum over keys and the mean over queries."


def _elsewhere(look: Look) -> str:
    """Where exact weights are to be had, if the page has them not."""
    if look.is_exact:
        return ""
    if look.layer.kept is None:
        return "Queries and keys were not kept, so there are no exact weights."
    return f"seen.tile({look.layer.index}, head, rows, cols) gives exact weights."


def _written(value: float) -> float | None:
    """What JSON can hold, in as many digits as float32 has."""
    return float(f"{value:.7g}") if math.isfinite(value) else None


def most_telling(looks: list[Look]) -> list[Place]:
    """All heads, first the one that is least like uniform attention: there is something to see."""
    return _from_the_largest([(look.map - look.uniform).abs().sum(-1).mean(-1).tolist() for look in looks])


def _from_the_largest(numbers: list[list[float]]) -> list[Place]:
    places = [(n, row) for n, heads in enumerate(numbers) for row in range(len(heads))]
    return sorted(places, key=lambda place: -numbers[place[0]][place[1]])


class _LabelSets:
    """Lists of labels, each once: most layers have the same."""

    def __init__(self) -> None:
        self.sets: list[list[str]] = []

    def number(self, labels: list[str] | None) -> int | None:
        if labels is None:
            return None
        if labels not in self.sets:
            self.sets.append(labels)
        return self.sets.index(labels)
