"""What was seen of a model's attention: small numbers about large matrices, by layer and head.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> from rearview.observe import observe
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
    >>> with observe(model) as seen:
    ...     logits = model(torch.arange(20).unsqueeze(0))
    >>> seen
    Seen(2 layers x 4 heads, 20 positions)
    >>> seen.received().shape, seen.map(1, 0).shape
    (torch.Size([2, 4, 20]), torch.Size([20, 20]))

A layer is named by its number in the model (negative ones count from the last) or by its name, a head by its number.
A method over all layers stacks what it finds; where layers differ in heads or keys (an encoder and a decoder) it
returns a list with one tensor a layer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rearview.attention.statistics import FIRST
from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.masks.frame import whole_number
from rearview.observe.labels import Labels
from rearview.observe.layer import Layer, Link
from rearview.observe.maps import coarser, expected_of, of_statistics, ratio
from rearview.observe.showing import Showing

if TYPE_CHECKING:
    from rearview.observe.diff import SeenDiff


class Seen(Showing):
    """What `observe` saw. It fills while the model runs, and can be looked at at any time.

    A call that continues where the last one ended (a step of generation) is joined to it; any other call begins a new
    sequence, and what is seen is the latest. `runs` counts them.
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
        # All attention layers of the model, watched or not: what negative numbers count from.
        self.model_layers = model_layers or max((layer.index + 1 for layer in layers), default=0)

    # What there is

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that ran, in the order in which they first did."""
        return tuple(self._layers.values())

    @property
    def length(self) -> int:
        """Positions of the sequence that the model writes or reads; of a decoder, if there is an encoder too."""
        own = [layer for layer in self.layers if layer.kind == "self"] or [*self.layers]
        return max((layer.queries for layer in own), default=0)

    @property
    def labels(self) -> list[str] | None:
        """A label for each position: the tokens, as text. May be set after the run, when the tokens are known."""
        return self._names.own(self.length)

    @labels.setter
    def labels(self, labels: Sequence[str] | None) -> None:
        self._names = Labels(labels, self._names.source_labels)
        self._names.check(self)

    @property
    def source_labels(self) -> list[str] | None:
        """A label for each position that an encoder reads, where a decoder hears it."""
        return None if self._names.source_labels is None else list(self._names.source_labels)

    @source_labels.setter
    def source_labels(self, labels: Sequence[str] | None) -> None:
        self._names = Labels(self._names.labels, labels)
        self._names.check(self)

    def query_labels(self, layer: int | str | Layer) -> list[str] | None:
        """The labels of the queries of a layer."""
        return self._names.queries_of(self, self.layer(layer))

    def key_labels(self, layer: int | str | Layer) -> list[str] | None:
        """The labels of the keys of a layer: for cross attention those of the encoder."""
        return self._names.keys_of(self, self.layer(layer))

    def layer(self, which: int | str | Layer) -> Layer:
        """A layer by its number in the model or by its name."""
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
        raise BadArgument("layer", expected=f"a layer that was watched: {known}", came=repr(which))

    # Looking

    def received(
        self,
        layer: int | str | Layer | None = None,
        head: int | None = None,
        *,
        item: int = 0,
        against: Literal["uniform"] | None = None,
    ) -> Any:
        """How much attention each key received in all: [layers, heads, keys], less the axes that were picked.

        Early keys are heard by more queries. `against="uniform"` divides by what each key would receive if every query
        listened equally to all that it may hear: 1 is no more than its place gives it.
        """
        _check_against(against)

        def of(layer: Layer) -> Tensor:
            found = layer.statistics.received[item]
            return ratio(found, expected_of(layer, item)) if against else found

        return self._each(of, layer, head, item)

    def entropy(self, layer: int | str | Layer | None = None, head: int | None = None, *, item: int = 0) -> Any:
        """How widely each query listens, in nats: 0 to one key, log(n) to n keys equally. [layers, heads, queries]."""
        return self._each(lambda layer: layer.statistics.entropy[item], layer, head, item)

    def distance(self, layer: int | str | Layer | None = None, head: int | None = None, *, item: int = 0) -> Any:
        """How far back each query listens on average, in positions: [layers, heads, queries]."""
        return self._each(lambda layer: layer.statistics.distance[item], layer, head, item)

    def histogram(self, layer: int | str | Layer | None = None, head: int | None = None, *, item: int = 0) -> Any:
        """The attention by how far back it goes: [layers, heads, bins]; `layer.statistics.histogram_edges` has them."""
        return self._each(lambda layer: layer.statistics.histogram[item], layer, head, item)

    def sinks(
        self,
        n: Literal[1, 4, 8] = 4,
        layer: int | str | Layer | None = None,
        head: int | None = None,
        *,
        item: int = 0,
        against: Literal["uniform"] | None = None,
    ) -> Any:
        """The share of attention that goes to the first `n` keys, the mean of all queries: [layers, heads].

        `against="uniform"` divides by the share that they would have if all keys were heard equally.
        """
        _check_against(against)
        if n not in FIRST or isinstance(n, bool):
            raise BadArgument("n", expected="1, 4 or 8 first keys", came=repr(n))

        def of(layer: Layer) -> Tensor:
            rows = layer.heard_rows(item)
            share = layer.statistics.first[item, :, :, FIRST.index(n)].sum(-1) / rows
            return ratio(share, expected_of(layer, item)[:, :n].sum(-1) / rows) if against else share

        return self._each(of, layer, head, item)

    def map(self, layer: int | str | Layer, head: int, size: int | None = None, *, item: int = 0) -> Tensor:
        """Attention pooled to a small picture [queries, keys]: the sum over keys, the mean over queries.

        Rows sum to 1, as those of the matrix do. A `size` below the stored one pools further; a larger one is computed
        from the queries and keys that were kept.
        """
        found, row = self._picked(layer, head, item)
        statistics = found.statistics
        if statistics.map is None and size is None:
            raise RearviewError("map: no map was made, as observe was asked with map_size=None. Ask for a size.")
        if size is not None:
            size = whole_number(size, "size", at_least=1)
            if statistics.map is None or (size > max(statistics.map.shape[-2:]) and statistics.bin_width > 1):
                return of_statistics(self._kept(found, "a larger map").statistics(map_size=size), item, row)
        return coarser(statistics, item, row, size)

    def tile(
        self,
        layer: int | str | Layer,
        head: int,
        rows: slice | range | None = None,
        cols: slice | range | None = None,
        *,
        item: int = 0,
    ) -> Tensor:
        """The exact weights of queries at positions `rows` over keys `cols`: [rows, cols], all unless given.

        They are computed from the queries and keys that were kept. Memory is rows x keys.
        """
        found, row = self._picked(layer, head, item)
        start = found.statistics.frame.q_start
        rows = _range(rows, "rows", found.queries, first=start)
        return self._kept(found, "exact weights").tile(rows, _range(cols, "cols", found.keys), item, row)

    def links(
        self, layer: int | str | Layer | None = None, head: int | None = None, *, item: int = 0, k: int = 20
    ) -> list[Link]:
        """The strongest links between two positions, strongest first; at most those that `observe(links=)` keeps."""
        k = whole_number(k, "k", at_least=1)
        found = []
        for each in self._chosen(layer):
            self._check_item(each, item)
            links = each.statistics.links
            for row, number in enumerate(each.heads):
                if head is not None and row != each.row_of(head):
                    continue
                columns = (links.weight[item, row], links.query[item, row], links.key[item, row])
                for weight, query, key in zip(*(column.tolist() for column in columns), strict=True):
                    # A head with fewer links than were asked for is filled up with weight 0.
                    if weight > 0:
                        found.append(Link(each.index, number, query, key, weight))
        return sorted(found, key=lambda link: (-link.weight, link.layer, link.head, link.query, link.key))[:k]

    def diff(self, other: Seen, *, item: int = 0) -> SeenDiff:
        """What changed from this run to another over the same tokens: another model, mask or kernel."""
        from rearview.observe.diff import SeenDiff

        return SeenDiff.of(self, other, item=item)

    # Files and words

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the kept queries and keys into a .npz file, in one step."""
        from rearview.observe.serial import save

        save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Seen:
        """What `save` wrote. Nothing in the file is executed."""
        from rearview.observe.serial import load

        return load(path)

    def describe(self, item: int = 0) -> str:
        """A table in words: for each layer how widely and how far back it listens, and how much the first keys get."""
        from rearview.observe.words import describe

        return describe(self, item)

    def __repr__(self) -> str:
        if not self._layers:
            return "Seen(nothing yet)"
        heads = sorted({len(layer.heads) for layer in self.layers})
        count = f"{len(self.layers)} layer{'s' * (len(self.layers) > 1)} x {'/'.join(map(str, heads))} heads"
        batch = max(layer.batch for layer in self.layers)
        items = f", batch of {batch}" if batch > 1 else ""
        runs = f", the last of {self.runs} sequences" if self.runs > 1 else ""
        return f"Seen({count}, {self.length} position{'s' * (self.length > 1)}{items}{runs})"

    # Inside

    def _put(self, layer: Layer) -> None:
        self._layers[layer.name] = layer

    def _needs_layers(self) -> None:
        if not self._layers:
            raise RearviewError(
                "Nothing was seen: no watched layer ran. Call the model inside `with observe(model) as seen:`."
            )

    def _chosen(self, layer: int | str | Layer | None) -> tuple[Layer, ...]:
        self._needs_layers()
        return self.layers if layer is None else (self.layer(layer),)

    def _each(
        self, of: Callable[[Layer], Tensor], layer: int | str | Layer | None, head: int | None, item: int
    ) -> Tensor | list[Tensor]:
        found = []
        for each in self._chosen(layer):
            self._check_item(each, item)
            value = of(each)
            found.append(value if head is None else value[each.row_of(head)])
        if layer is not None:
            return found[0]
        return torch.stack(found) if len({tuple(value.shape) for value in found}) == 1 else found

    def _picked(self, layer: int | str | Layer, head: int, item: int) -> tuple[Layer, int]:
        found = self.layer(layer)
        self._check_item(found, item)
        return found, found.row_of(head)

    @staticmethod
    def _check_item(layer: Layer, item: int) -> None:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < layer.batch:
            raise BadArgument("item", expected=f"a batch item from 0 to {layer.batch - 1}", came=repr(item))

    @staticmethod
    def _kept(layer: Layer, what: str) -> Any:
        if layer.kept is None:
            why = layer.why_not_kept or "queries and keys are not in the file"
            advice = "Observe again with keep=True, or fewer layers= or heads=, and look before you leave the program."
            raise Unsupported(f"{what} of {layer.name} cannot be computed", [why], advice=advice)
        return layer.kept


def _check_against(against: object) -> None:
    if against not in (None, "uniform"):
        raise BadArgument("against", expected="'uniform' or nothing", came=repr(against))


def _range(given: slice | range | None, name: str, end: int, *, first: int = 0) -> range:
    """Positions first..end-1 as a range with step 1."""
    if given is None:
        return range(first, end)
    if isinstance(given, slice) and given.step in (None, 1):
        start, stop, _ = given.indices(end)
        start = max(start, first) if given.start is None else start
        given = range(start, stop)
    inside = isinstance(given, range) and given.step == 1 and first <= given.start < given.stop <= end
    if not inside:
        expected = f"a slice or range of the positions {first} to {end - 1}, in steps of 1"
        raise BadArgument(name, expected=expected, came=repr(given))
    assert isinstance(given, range)
    return given
