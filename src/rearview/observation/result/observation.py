"""What was observed of a model's attention: small numbers about large matrices, by layer and head.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.observation import observe
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
    >>> with observe(model) as seen:
    ...     logits = model(torch.arange(20).unsqueeze(0))
    >>> seen
    Observation(2 layers x 4 heads, 20 positions)
    >>> seen.received().shape, seen.map(1, 0).shape
    (torch.Size([2, 4, 20]), torch.Size([20, 20]))

A layer is chosen by its number in the model (negative ones count from the last) or by its name, a head by its number.
A method over all layers returns one stacked tensor; where layers differ in heads or keys (an encoder and a decoder) it
returns a list with one tensor per layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor

from rearview.attention.stats import FIRST
from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.masks.frame import whole_number
from rearview.observation.result.display import Display
from rearview.observation.result.labels import Labels
from rearview.observation.result.layer import Layer, Link
from rearview.observation.result.maps import coarser, expected_of, ratio

if TYPE_CHECKING:
    from rearview.observation.result.diff import ObservationDiff
    from rearview.observation.views.layer_view import LayerView
    from rearview.observation.watching.retained_calls import RetainedCalls

# How a layer is chosen: by its number in the model, by its name, or as itself.
LayerKey = int | str | Layer


class Observation(Display):
    """What `observe` recorded. It fills while the model runs, and can be read at any time.

    A call that continues where the last one ended (a step of generation) is joined to it; any other call begins a new
    sequence, and the observation is that of the latest one. `runs` is the number of sequences.
    """

    def __init__(
        self,
        layers: Sequence[Layer] = (),
        *,
        labels: Sequence[str] | None = None,
        source_labels: Sequence[str] | None = None,
        title: str = "",
        runs: int = 1,
        model_layers: int | None = None,
    ):
        self._layers = {layer.name: layer for layer in layers}
        self._names = Labels(labels, source_labels)
        self.title = title
        self.runs = runs
        # The number of attention layers of the model, watched or not: negative numbers count from it.
        self.model_layers = model_layers or max((layer.index + 1 for layer in layers), default=0)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that ran, in the order in which they first ran."""
        return tuple(self._layers.values())

    @property
    def length(self) -> int:
        """The number of positions of the sequence; that of the decoder, if there is an encoder too."""
        own = [layer for layer in self.layers if layer.kind == "self"] or [*self.layers]
        return max((layer.queries for layer in own), default=0)

    @property
    def labels(self) -> list[str] | None:
        """The tokens as text, one label per position. They may be set after the run, when the tokens are known."""
        return self._names.own(self.length)

    @labels.setter
    def labels(self, labels: Sequence[str] | None) -> None:
        self._names = Labels(labels, self._names.source_labels)
        self._names.check(self)

    @property
    def source_labels(self) -> list[str] | None:
        """The tokens that an encoder reads, one label per position, where a decoder hears it."""
        return None if self._names.source_labels is None else list(self._names.source_labels)

    @source_labels.setter
    def source_labels(self, labels: Sequence[str] | None) -> None:
        self._names = Labels(self._names.labels, labels)
        self._names.check(self)

    @property
    def headline(self) -> str:
        """The title of drawings."""
        return self.title or "What attention does"

    def query_labels(self, layer: LayerKey) -> list[str] | None:
        """The labels of the queries of a layer."""
        return self._names.queries_of(self, self.layer(layer))

    def key_labels(self, layer: LayerKey) -> list[str] | None:
        """The labels of the keys of a layer; for cross attention those of the encoder."""
        return self._names.keys_of(self, self.layer(layer))

    def layer(self, which: LayerKey) -> Layer:
        """A layer, by its number in the model or by its name."""
        self._needs_layers()
        if isinstance(which, Layer):
            return which
        if isinstance(which, str) and which in self._layers:
            return self._layers[which]
        if isinstance(which, int) and not isinstance(which, bool):
            number = which + self.model_layers if which < 0 else which
            for layer in self.layers:
                if layer.index == number:
                    return layer
        known = ", ".join(f"{layer.index} ({layer.name})" for layer in self.layers)
        raise BadArgument("layer", expected=f"a layer that was watched: {known}", got=repr(which))

    @overload
    def received(
        self, layer: LayerKey, head: int | None = ..., *, item: int = ..., against: Literal["uniform"] | None = ...
    ) -> Tensor: ...

    @overload
    def received(
        self, layer: None = ..., head: int | None = ..., *, item: int = ..., against: Literal["uniform"] | None = ...
    ) -> Tensor | list[Tensor]: ...

    def received(
        self,
        layer: LayerKey | None = None,
        head: int | None = None,
        *,
        item: int = 0,
        against: Literal["uniform"] | None = None,
    ) -> Tensor | list[Tensor]:
        """The attention that each key received from all queries: [layers, heads, keys], without chosen axes.

        Early keys are heard by more queries. `against="uniform"` divides by what each key would receive if every query
        attended equally to all keys that it may hear: 1 means no more than its position gives it.
        """
        _check_against(against)

        def of(layer: Layer) -> Tensor:
            received = layer.statistics.received[item]
            return ratio(received, expected_of(layer, item)) if against else received

        return self._each(of, layer, head, item)

    @overload
    def entropy(self, layer: LayerKey, head: int | None = ..., *, item: int = ...) -> Tensor: ...

    @overload
    def entropy(self, layer: None = ..., head: int | None = ..., *, item: int = ...) -> Tensor | list[Tensor]: ...

    def entropy(
        self, layer: LayerKey | None = None, head: int | None = None, *, item: int = 0
    ) -> Tensor | list[Tensor]:
        """The entropy of the weights of each query, in nats: log(n) for n equal keys. [layers, heads, queries]."""
        return self._each(lambda layer: layer.statistics.entropy[item], layer, head, item)

    @overload
    def distance(self, layer: LayerKey, head: int | None = ..., *, item: int = ...) -> Tensor: ...

    @overload
    def distance(self, layer: None = ..., head: int | None = ..., *, item: int = ...) -> Tensor | list[Tensor]: ...

    def distance(
        self, layer: LayerKey | None = None, head: int | None = None, *, item: int = 0
    ) -> Tensor | list[Tensor]:
        """The mean distance back to the keys that each query attends to, in positions: [layers, heads, queries]."""
        return self._each(lambda layer: layer.statistics.distance[item], layer, head, item)

    @overload
    def histogram(self, layer: LayerKey, head: int | None = ..., *, item: int = ...) -> Tensor: ...

    @overload
    def histogram(self, layer: None = ..., head: int | None = ..., *, item: int = ...) -> Tensor | list[Tensor]: ...

    def histogram(
        self, layer: LayerKey | None = None, head: int | None = None, *, item: int = 0
    ) -> Tensor | list[Tensor]:
        """The attention by distance back: [layers, heads, bins]; `layer.statistics.histogram_edges` has the edges."""
        return self._each(lambda layer: layer.statistics.histogram[item], layer, head, item)

    @overload
    def sinks(
        self,
        n: Literal[1, 4, 8],
        layer: LayerKey,
        head: int | None = ...,
        *,
        item: int = ...,
        against: Literal["uniform"] | None = ...,
    ) -> Tensor: ...

    @overload
    def sinks(
        self,
        n: Literal[1, 4, 8] = ...,
        layer: None = ...,
        head: int | None = ...,
        *,
        item: int = ...,
        against: Literal["uniform"] | None = ...,
    ) -> Tensor | list[Tensor]: ...

    def sinks(
        self,
        n: Literal[1, 4, 8] = 4,
        layer: LayerKey | None = None,
        head: int | None = None,
        *,
        item: int = 0,
        against: Literal["uniform"] | None = None,
    ) -> Tensor | list[Tensor]:
        """The share of attention that goes to the first `n` keys, mean over all queries: [layers, heads].

        `against="uniform"` divides by the share that they would have if all keys were heard equally.
        """
        _check_against(against)
        if n not in FIRST or isinstance(n, bool):
            raise BadArgument("n", expected="1, 4 or 8 first keys", got=repr(n))

        def of(layer: Layer) -> Tensor:
            rows = layer.heard_rows(item)
            share = layer.statistics.first[item, :, :, FIRST.index(n)].sum(-1) / rows
            return ratio(share, expected_of(layer, item)[:, :n].sum(-1) / rows) if against else share

        return self._each(of, layer, head, item)

    def map(self, layer: LayerKey, head: int, size: int | None = None, *, item: int = 0) -> Tensor:
        """The weights pooled to a small map [queries, keys]: the sum over keys, the mean over queries.

        Rows sum to 1, as those of the matrix do. A `size` below the stored one pools further; a larger map is computed
        from the queries and keys that were kept.
        """
        found, row = self._picked(layer, head, item)
        statistics = found.statistics
        if statistics.map is None and size is None:
            raise RearviewError("map: no map was made: observe was called with map_size=None. Ask for a size.")
        if size is not None:
            size = whole_number(size, "size", at_least=1)
            if statistics.map is None or (size > max(statistics.map.shape[-2:]) and statistics.bin_width > 1):
                statistics, size = self._retained(found, "a larger map").statistics(map_size=size), None
        return coarser(statistics, item, row, size)

    def tile(
        self,
        layer: LayerKey,
        head: int,
        rows: slice | range | None = None,
        cols: slice | range | None = None,
        *,
        item: int = 0,
    ) -> Tensor:
        """The exact weights of the queries at positions `rows` over the keys `cols`: [rows, cols]; all by default.

        They are computed from the queries and keys that were kept. The memory is rows x keys.
        """
        found, row = self._picked(layer, head, item)
        start = found.statistics.frame.q_start
        rows = _range(rows, "rows", found.queries, first=start)
        return self._retained(found, "exact weights").tile(rows, _range(cols, "cols", found.keys), item, row)

    def links(
        self,
        layer: LayerKey | None = None,
        head: int | None = None,
        *,
        item: int = 0,
        k: int = 20,
        against: Literal["uniform"] | None = None,
    ) -> list[Link]:
        """The `k` strongest links between two positions, strongest first, out of those that `observe(links=)` kept.

        The largest weights favour queries that hear few keys: the first of a causal sequence. `against="uniform"`
        ranks every pair by its weight x the number of keys that the query hears, which is `times` of a link: 1 means
        no preference. The weights are computed again from the queries and keys that were kept, so all pairs take part.
        """
        _check_against(against)
        k = whole_number(k, "k", at_least=1)
        found: list[Link] = []
        for each in self._chosen(layer):
            self._check_item(each, item)
            for row in range(len(each.heads)) if head is None else [each.row_of(head)]:
                if against is None:
                    found += each.links(row, item)
                    continue
                again = self._retained(each, "links against uniform attention").relative_links(item, row, k)
                found += [Link(each.index, each.heads[row], q, key, w, times) for times, w, q, key in again]
        return sorted(found, key=_rank)[:k]

    def diff(self, other: Observation, *, item: int = 0) -> ObservationDiff:
        """What changed from this run to another over the same tokens: with another model, mask or kernel."""
        from rearview.observation.result.diff import ObservationDiff

        return ObservationDiff.of(self, other, item=item)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the kept queries and keys to a .npz file, in one step."""
        from rearview.observation.result.serial import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Observation:
        """Read a file that `save` wrote. Nothing in the file is executed."""
        from rearview.observation.result.serial import load

        return load(path)

    def describe(self, item: int = 0) -> str:
        """A table with one line per layer: its entropy, its distance back, and the share of the first keys."""
        from rearview.observation.views.sentences import summary

        return summary(self, item)

    def __repr__(self) -> str:
        if not self._layers:
            return "Observation(nothing yet)"
        heads = sorted({len(layer.heads) for layer in self.layers})
        count = f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)} x {'/'.join(map(str, heads))} heads"
        batch = max(layer.batch for layer in self.layers)
        items = f", batch of {batch}" if batch > 1 else ""
        runs = f", the last of {self.runs} sequences" if self.runs > 1 else ""
        return f"Observation({count}, {self.length} position{'s' * (self.length > 1)}{items}{runs})"

    def _views(self, layer: LayerKey | None = None, *, item: int = 0, exact_up_to: int = 0) -> Sequence[LayerView]:
        from rearview.observation.views.layer_view import LayerView

        return [LayerView.of(self, each, item=item, exact_up_to=exact_up_to) for each in self._chosen(layer)]

    def _check_scale(self, scale: str) -> None:
        from rearview.observation.views.scales import SCALES, check_scale

        check_scale(scale, SCALES)

    def _put(self, layer: Layer) -> None:
        self._layers[layer.name] = layer

    def _needs_layers(self) -> None:
        if not self._layers:
            raise RearviewError(
                "Nothing was observed: no watched layer ran. Call the model inside `with observe(model) as seen:`."
            )

    def _chosen(self, layer: LayerKey | None) -> tuple[Layer, ...]:
        self._needs_layers()
        return self.layers if layer is None else (self.layer(layer),)

    def _each(
        self, of: Callable[[Layer], Tensor], layer: LayerKey | None, head: int | None, item: int
    ) -> Tensor | list[Tensor]:
        found = []
        for each in self._chosen(layer):
            self._check_item(each, item)
            value = of(each)
            found.append(value if head is None else value[each.row_of(head)])
        if layer is not None:
            return found[0]
        return torch.stack(found) if len({tuple(value.shape) for value in found}) == 1 else found

    def _picked(self, layer: LayerKey, head: int, item: int) -> tuple[Layer, int]:
        found = self.layer(layer)
        self._check_item(found, item)
        return found, found.row_of(head)

    @staticmethod
    def _check_item(layer: Layer, item: int) -> None:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < layer.batch:
            raise BadArgument("item", expected=f"a batch item from 0 to {layer.batch - 1}", got=repr(item))

    @staticmethod
    def _retained(layer: Layer, what: str) -> RetainedCalls:
        if layer.retained is None:
            why = layer.why_not_retained or "queries and keys are not in the file"
            advice = "Observe again with keep=True, or with fewer layers= or heads=; a saved file does not hold them."
            raise Unsupported(f"{what} of {layer.name} cannot be computed", [why], advice=advice)
        return layer.retained


def _rank(link: Link) -> tuple[float, ...]:
    measure = link.weight if link.times is None else link.times
    return -measure, link.layer, link.head, link.query, link.key


def _check_against(against: object) -> None:
    if against not in (None, "uniform"):
        raise BadArgument("against", expected="'uniform' or None", got=repr(against))


def _range(given: slice | range | None, name: str, end: int, *, first: int = 0) -> range:
    """Some of the positions first..end-1, as a range with step 1."""
    if given is None:
        return range(first, end)
    if isinstance(given, slice) and given.step in (None, 1):
        start, stop, _ = given.indices(end)
        start = max(start, first) if given.start is None else start
        given = range(start, stop)
    inside = isinstance(given, range) and given.step == 1 and first <= given.start < given.stop <= end
    if not inside:
        expected = f"a slice or range of the positions {first} to {end - 1}, in steps of 1"
        raise BadArgument(name, expected=expected, got=repr(given))
    assert isinstance(given, range)
    return given
