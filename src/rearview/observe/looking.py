"""What every drawing of a Seen begins from: a layer of one batch item, with its maps as shares and its labels.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.observe import observe
>>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=2, width=8)).eval()
>>> with observe(model) as seen:
...     logits = model(torch.arange(20).unsqueeze(0))
>>> look = look_at(seen, seen.layers[0])
>>> look.map.shape, look.is_exact
(torch.Size([2, 20, 20]), True)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.attention.statistics.bins import merged
from rearview.errors import Unsupported
from rearview.masks.labels import drawn

if TYPE_CHECKING:
    from rearview.observe.layer import Layer, Link
    from rearview.observe.seen import Seen

# A map that was not made is made with so many bins a side, where queries and keys were kept.
BINS = 64
KINDS = {"encoder": "enc"}


@dataclass(frozen=True, eq=False)
class Look:
    """One layer and batch item. Tensors [heads, ...] on the CPU, in float32; rows of maps are queries, columns keys.

    Args:
        start, stop, k_len: the positions of the queries, and how many keys there are.
        top, width: the position where the first row of the maps begins, and positions a bin.
        map: mean over the queries of a row of the share that goes to the keys of a column.
        uniform: the same of uniform attention under the same mask; [1, ...] where all heads share it.
        first: the share of the first key alone, [heads, rows].
        rows_heard: how many queries of each row heard anything, [heads, rows].
        heard: how many did in all, [heads].
    """

    layer: Layer
    item: int
    query_labels: list[str] | None
    key_labels: list[str] | None
    start: int
    stop: int
    k_len: int
    top: int
    width: int
    map: Tensor
    uniform: Tensor
    first: Tensor
    rows_heard: Tensor
    heard: Tensor

    @property
    def is_exact(self) -> bool:
        """Is a cell one query and one key?"""
        return self.width == 1

    @cached_property
    def received(self) -> Tensor:
        """What each key received in all, [heads, keys]."""
        return _plain(self.layer.statistics.received[self.item])

    @cached_property
    def expected(self) -> Tensor:
        """What it would receive from uniform attention; [1, keys] where all heads share it."""
        expected = self.layer.statistics.expected
        return _plain(expected[min(self.item, len(expected) - 1)])

    @cached_property
    def entropy(self) -> Tensor:
        """[heads, queries], nats."""
        return _plain(self.layer.statistics.entropy[self.item])

    @cached_property
    def distance(self) -> Tensor:
        """[heads, queries], positions back."""
        return _plain(self.layer.statistics.distance[self.item])

    @cached_property
    def histogram(self) -> Tensor:
        """[heads, bins], the mass by distance."""
        return _plain(self.layer.statistics.histogram[self.item])

    def coarser(self, size: int) -> Look:
        """With at most `size` bins a side: neighbours joined, exactly."""
        return self.joined(-(-max(self.map.shape[-2:]) // size))

    def joined(self, times: int) -> Look:
        """With so many neighbouring bins as one."""
        if times == 1:
            return self
        # Bins are counted from `origin`, so the first of the joined ones may begin before the first row.
        origin = min(0, self.start)
        before = (self.top - origin) // self.width % times

        def joined(values: Tensor, axes: tuple[int, ...]) -> Tensor:
            return merged(F.pad(values, (*[0, 0] * (-axes[0] - 1), before, 0)), times, axes)

        counts = self.rows_heard
        heard = joined(counts, (-1,))

        def means(values: Tensor, axes: tuple[int, ...]) -> Tensor:
            weights, whole = counts[: len(values)], heard[: len(values)].clamp(min=1)
            many = len(axes) == 2
            sums = joined(values * (weights.unsqueeze(-1) if many else weights), axes)
            return sums / (whole.unsqueeze(-1) if many else whole)

        return replace(
            self,
            top=self.top - before * self.width,
            width=self.width * times,
            map=means(self.map, (-2, -1)),
            uniform=means(self.uniform, (-2, -1)),
            first=means(self.first, (-1,)),
            rows_heard=heard,
        )

    def queries_of(self, row: int) -> range:
        """The positions of the queries of a row of the maps."""
        begin = self.top + row * self.width
        return range(max(self.start, begin), min(self.stop, begin + self.width))

    def keys_of(self, column: int) -> range:
        return range(column * self.width, min(self.k_len, (column + 1) * self.width))


def short_name(layer: Layer, *, several_kinds: bool) -> str:
    """The number of a layer; with its kind, where there are several.

    >>> from types import SimpleNamespace
    >>> short_name(SimpleNamespace(kind="encoder", index=3), several_kinds=True)
    'enc 3'
    """
    return f"{KINDS.get(layer.kind, layer.kind)} {layer.index}" if several_kinds else str(layer.index)


def look_at(seen: Seen, layer: Layer, *, item: int = 0, exact_up_to: int = 0) -> Look:
    """A layer as it is drawn. Up to so many positions its map is made exact, where queries and keys were kept."""
    seen._check_item(layer, item)
    statistics = layer.statistics
    size = max(layer.queries, layer.keys)
    if statistics.map is None or (statistics.bin_width > 1 and size <= exact_up_to and layer.kept is not None):
        if layer.kept is None:
            why = layer.why_not_kept or "queries and keys are not in the file"
            reasons = ["no map was made, as observe was asked with map_size=None", why]
            raise Unsupported(f"{layer.name} cannot be drawn", reasons)
        statistics = layer.kept.statistics(map_size=size if size <= exact_up_to else BINS)
    frame, width = statistics.frame, statistics.bin_width
    assert statistics.map is not None
    assert statistics.rows_heard is not None
    assert statistics.expected_map is not None
    # Bins are counted from position 0, or from the first query where that lies before it.
    origin = min(0, frame.q_start)
    skipped = (frame.q_start - origin) // width
    rows_heard = _plain(statistics.rows_heard[item])[:, skipped:]
    count = rows_heard.clamp(min=1)
    expected = statistics.expected_map
    uniform = _plain(expected[min(item, len(expected) - 1)])[:, skipped:]
    bins = (torch.arange(frame.q_start, frame.q_end) - origin) // width - skipped
    first = torch.zeros_like(rows_heard).index_add_(-1, bins, _plain(statistics.first[item, :, :, 0]))
    return Look(
        layer=layer,
        item=item,
        query_labels=_drawn(seen.query_labels(layer)),
        key_labels=_drawn(seen.key_labels(layer)),
        start=frame.q_start,
        stop=frame.q_end,
        k_len=frame.k_len,
        top=origin + skipped * width,
        width=width,
        map=_plain(statistics.map[item])[:, skipped:] / count.unsqueeze(-1),
        uniform=uniform / count[: len(uniform)].unsqueeze(-1),
        first=first / count,
        rows_heard=rows_heard,
        heard=_plain((statistics.lse[item] > -torch.inf).sum(-1)),
    )


def telling_links(seen: Seen, look: Look, row: int, *, k: int) -> list[Link]:
    """The strongest links of a head, without those of a query that had no choice: it hears one key only."""
    kept = look.layer.statistics.links.weight.shape[-1]
    found = seen.links(look.layer, look.layer.heads[row], item=look.item, k=max(1, kept))
    uniform = look.uniform[min(row, len(look.uniform) - 1)]

    def had_a_choice(link: Link) -> bool:
        if look.is_exact:
            return float(uniform[link.query - look.top, link.key]) < 1
        return not (look.layer.kind == "self" and link.query == 0)

    return [link for link in found if had_a_choice(link)][:k]


def _plain(values: Tensor) -> Tensor:
    return values.detach().float().cpu()


def _drawn(labels: list[str] | None) -> list[str] | None:
    return None if labels is None else [_word(label) for label in labels]


# Every layer has the same tokens.
_word = lru_cache(maxsize=1 << 16)(drawn)
