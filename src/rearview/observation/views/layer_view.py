"""One layer of an observation as every drawing shows it: one batch item, its maps as shares, its labels.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.observation import observe
>>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=1, heads=2, width=8)).eval()
>>> with observe(model) as seen:
...     logits = model(torch.arange(20).unsqueeze(0))
>>> view = LayerView.of(seen, seen.layers[0])
>>> view.map.shape, view.is_exact
(torch.Size([2, 20, 20]), True)
>>> view.sentences(0)[0].partition(";")[2]
' uniform attention would give it 18.0 %.'
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.attention.stats.bins import merged
from rearview.drawing.cells import drawn
from rearview.errors import Unsupported
from rearview.observation.views.exact_head import ExactHead, exact_head
from rearview.observation.views.scales import SCALES, ShadedMap, shaded_map
from rearview.observation.views.sentences import METRICS, Metrics, figures, head_sentences

if TYPE_CHECKING:
    from rearview.observation.result.layer import Layer, Link
    from rearview.observation.result.observation import Observation

# The number of bins per side of a map that `observe` did not make, where queries and keys were kept.
BINS = 64
KINDS = {"encoder": "enc"}


@dataclass(frozen=True, eq=False)
class LayerView:
    """One layer and batch item. Tensors [heads, ...] on the CPU, in float32; rows of maps are queries, columns keys.

    Args:
        start, stop, k_len: the positions of the queries, and the number of keys.
        top, width: the position where the first row of the maps begins, and the number of positions per bin.
        map: the mean, over the queries of a row, of the share that goes to the keys of a column.
        uniform: the same for uniform attention under the same mask; [1, ...] where all heads share it.
        first: the share of the first key alone, [heads, rows].
        rows_heard: the number of queries in each row that heard anything, [heads, rows].
        heard: the number of queries that heard anything, [heads].
    """

    is_change: ClassVar[bool] = False
    metrics: ClassVar[Metrics] = METRICS
    scales: ClassVar[tuple[str, ...]] = SCALES

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

    @classmethod
    def of(cls, observation: Observation, layer: Layer, *, item: int = 0, exact_up_to: int = 0) -> LayerView:
        """The view of one layer. Up to `exact_up_to` positions the map is exact, where queries and keys were kept."""
        observation._check_item(layer, item)
        statistics = layer.statistics
        size = max(layer.queries, layer.keys)
        retained = layer.retained
        if statistics.map is None or (statistics.bin_width > 1 and size <= exact_up_to and retained is not None):
            if retained is None:
                why = layer.why_not_retained or "queries and keys are not in the file"
                reasons = ["no map was made: observe was called with map_size=None", why]
                raise Unsupported(f"{layer.name} cannot be drawn", reasons)
            statistics = retained.statistics(map_size=size if size <= exact_up_to else BINS)
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
        return cls(
            layer=layer,
            item=item,
            query_labels=_drawn(observation.query_labels(layer)),
            key_labels=_drawn(observation.key_labels(layer)),
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

    @property
    def base(self) -> LayerView:
        """The view that sizes and labels are read from."""
        return self

    @property
    def is_exact(self) -> bool:
        """Whether a cell is one query and one key."""
        return self.width == 1

    @property
    def contrast(self) -> Tensor:
        """How far each head is from uniform attention, [heads]; a head with a larger value is more informative."""
        return (self.map - self.uniform).abs().sum(-1).mean(-1)

    @cached_property
    def received(self) -> Tensor:
        """The attention that each key received from all queries, [heads, keys]."""
        return _plain(self.layer.statistics.received[self.item])

    @cached_property
    def expected(self) -> Tensor:
        """What each key would receive from uniform attention; [1, keys] where all heads share it."""
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
        """[heads, bins], the attention by distance."""
        return _plain(self.layer.statistics.histogram[self.item])

    def coarser(self, size: int) -> LayerView:
        """The same view with at most `size` bins per side; neighbouring bins are joined exactly."""
        return self.joined(-(-max(self.map.shape[-2:]) // size))

    def joined(self, times: int) -> LayerView:
        """The same view with every `times` neighbouring bins joined into one."""
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
        """The positions of the keys of a column of the maps."""
        return range(column * self.width, min(self.k_len, (column + 1) * self.width))

    def uniform_of(self, row: int) -> Tensor:
        """The map of uniform attention for one head."""
        return self.uniform[min(row, len(self.uniform) - 1)]

    def expected_of(self, row: int) -> Tensor:
        """What each key would receive from uniform attention in one head, [keys]."""
        return self.expected[min(row, len(self.expected) - 1)]

    def figures(self, row: int) -> dict[str, float]:
        """One number for each of `metrics`, for the head in this row; and the shares of uniform attention."""
        return figures(self, row)

    def sentences(self, row: int) -> list[str]:
        """What the head in this row does."""
        return head_sentences(self, row)

    def shaded(self, row: int, scale: str) -> ShadedMap:
        """The map of the head in this row on one of `scales`."""
        return shaded_map(self.map[row], self.uniform_of(row), self.first[row], scale)

    def links(self, row: int, *, k: int) -> list[Link]:
        """The strongest links of a head, without those of a query that had no choice because it hears one key only."""
        uniform = self.uniform_of(row)

        def had_a_choice(link: Link) -> bool:
            if self.is_exact:
                return float(uniform[link.query - self.top, link.key]) < 1
            return not (self.layer.kind == "self" and link.query == 0)

        return [link for link in self.layer.links(row, self.item) if had_a_choice(link)][:k]

    def exact_head(self, row: int) -> ExactHead | None:
        """What a page needs to compute the exact weights of a head; None where it needs or has nothing."""
        return None if self.is_exact else exact_head(self.layer, item=self.item, row=row)

    def page_maps(self) -> dict[str, Tensor]:
        """What the page shows besides the map and uniform attention."""
        return {"first": self.first}


def short_name(layer: Layer, *, several_kinds: bool) -> str:
    """The number of a layer; with its kind, where there are several.

    >>> from types import SimpleNamespace
    >>> short_name(SimpleNamespace(kind="encoder", index=3), several_kinds=True)
    'enc 3'
    """
    return f"{KINDS.get(layer.kind, layer.kind)} {layer.index}" if several_kinds else str(layer.index)


def _plain(values: Tensor) -> Tensor:
    return values.detach().float().cpu()


def _drawn(labels: list[str] | None) -> list[str] | None:
    return None if labels is None else [_word(label) for label in labels]


# Every layer has the same tokens.
_word = lru_cache(maxsize=1 << 16)(drawn)
