"""What every drawing of a SeenDiff begins from: a layer before and after, with the same bins.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal, window
>>> from rearview.observe import observe
>>> layer, x = MaskedSelfAttention(8, 2), torch.randn(1, 6, 8)
>>> with observe(layer) as before:
...     out = layer(x)
>>> with observe(layer) as after:
...     out = layer(x, mask=causal() & window(2))
>>> change = changes_at(before.diff(after))[0]
>>> change.map.shape, change_sentences(change, 0)[0].endswith("went to other keys.")
(torch.Size([2, 6, 6]), True)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.observe.looking import Look, look_at
from rearview.observe.sentences import share

if TYPE_CHECKING:
    from rearview.observe.diff import LayerDiff, SeenDiff
    from rearview.observe.layer import Layer
    from rearview.observe.seen import Seen

CHANGE_METRICS: dict[str, dict[str, object]] = {
    "moved": {"name": "went elsewhere", "unit": "share", "most": 1},
    "largest": {"name": "largest change of a cell", "unit": "share"},
    "kl": {"name": "KL(before, after), nats", "unit": "number"},
    "sinks": {"name": "on the first 4", "unit": "share", "signed": True},
    "entropy": {"name": "entropy, nats", "unit": "number", "signed": True},
}


@dataclass(frozen=True, eq=False)
class Change:
    """One layer of both runs; `diff` has its figures, as `seen.diff` gave them."""

    before: Look
    after: Look
    diff: LayerDiff

    @property
    def map(self) -> Tensor:
        """[heads, rows, columns], after - before."""
        return self.after.map - self.before.map

    @property
    def uniform(self) -> Tensor:
        """What uniform attention would give under either mask: 0 where neither may hear."""
        return torch.maximum(*torch.broadcast_tensors(self.before.uniform, self.after.uniform))

    def coarser(self, size: int) -> Change:
        """With at most `size` bins a side."""
        return Change(self.before.coarser(size), self.after.coarser(size), self.diff)


def changes_at(diff: SeenDiff, *, exact_up_to: int = 0) -> list[Change]:
    """Every layer, before and after, in bins that both have."""
    changes = []
    for each in diff.layers:
        looks = [
            look_at(seen, layer, item=diff.item, exact_up_to=exact_up_to)
            for seen, layer in ((diff.before, each.before), (diff.after, each.after))
        ]
        width = math.lcm(*(look.width for look in looks))
        before, after = (look.joined(width // look.width) for look in looks)
        changes.append(Change(before, after, each))
    return changes


def looks_at(
    seen: Seen | SeenDiff, layer: int | str | Layer | None = None, *, item: int = 0, exact_up_to: int = 0
) -> list[Look] | list[Change]:
    """The layers of a run or of a difference as they are drawn: all, or one. A difference has an item of its own."""
    from rearview.observe.diff import SeenDiff

    if not isinstance(seen, SeenDiff):
        return [look_at(seen, each, item=item, exact_up_to=exact_up_to) for each in seen._chosen(layer)]
    if item not in (0, seen.item):
        advice = f"Ask for it there: before.diff(after, item={item})."
        raise BadArgument("item", expected=f"{seen.item}, as in the difference", came=repr(item), advice=advice)
    changes = changes_at(seen, exact_up_to=exact_up_to)
    if layer is None:
        return changes
    wanted = seen.layer(layer if isinstance(layer, (int, str)) else layer.name)
    return [each for each in changes if each.diff is wanted]


def base_of(look: Look | Change) -> Look:
    """The look itself, or the one before the change: sizes and labels are the same in both."""
    return look.before if isinstance(look, Change) else look


def change_figures(change: Change, row: int) -> dict[str, float]:
    """One number for each of CHANGE_METRICS."""
    return {name: float(getattr(change.diff, name)[row]) for name in CHANGE_METRICS}


def change_sentences(change: Change, row: int) -> list[str]:
    """What changed in a head."""
    found = change_figures(change, row)
    if not found["largest"]:
        return ["Nothing changed."]
    said = [f"{share(found['moved'])} of the weight went to other keys."]
    sinks, entropy = found["sinks"], found["entropy"]
    if abs(sinks) >= 5e-4:
        said.append(
            f"The share of the first 4 keys {'rose' if sinks > 0 else 'fell'} by {share(abs(sinks))} of the weight."
        )
    if abs(entropy) >= 5e-3:
        wide = "widely" if entropy > 0 else "narrowly"
        said.append(
            f"It listens more {wide}: its entropy {'rose' if entropy > 0 else 'fell'} by {abs(entropy):.2f} nats."
        )
    if math.isinf(found["kl"]):
        said.append("Some keys that were heard before are not heard at all any more.")
    return said
