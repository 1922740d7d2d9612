"""observe(): look at the attention of a model while it runs, whatever kernel computes it.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
    >>> with observe(model, layers=-1, heads=[0, 1]) as seen:
    ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
    >>> seen.layers[0].name, seen.layers[0].heads
    ('blocks.1.attention', (0, 1))

The model computes what it always computes, with its own kernels; queries and keys are read on the way, and statistics
made of them a strip at a time. Memory grows with the length, not with its square.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakSet

from torch import nn

from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.masks.frame import whole_number
from rearview.observe.choice import chosen_heads, chosen_layers
from rearview.observe.found import Found, Sight
from rearview.observe.glance import Glance
from rearview.observe.record import Budget, Recorder
from rearview.observe.seen import Seen

# Modules that are being watched: two watchers of one layer would undo each other's work.
_watched: WeakSet[nn.Module] = WeakSet()


@contextmanager
def observe(
    model: nn.Module,
    *,
    layers: Any = None,
    heads: Any = None,
    map_size: int | None = 64,
    links: int = 32,
    labels: Sequence[str] | None = None,
    source_labels: Sequence[str] | None = None,
    keep: str | bool | int | None = "auto",
) -> Iterator[Seen]:
    """Watch the attention of `model` inside a `with` block; what was seen stays afterwards.

    Works for models made of Rearview's layers and for models of transformers, with fused kernels left on, and changes
    nothing that they compute. A call that continues the sequence (generation with a cache) is joined to what was seen;
    any other begins a new sequence, and what is seen is the latest. Weights are those before dropout.

    Args:
        layers: which to watch, all unless given: numbers, names ("decoder.*"), slices, or a list of these.
        heads: which of their heads, all unless given: numbers, slices, or a list of these.
        map_size: the maps have at most so many bins a side; None makes none.
        links: so many of the strongest links of each head are kept.
        labels: the tokens as text, one a position; `seen.labels = ...` sets them afterwards.
        source_labels: those of an encoder's input, where there is a decoder too.
        keep: what queries and keys may take, for exact tiles: bytes, "auto" for 256 MiB, True for all, None for none.

    >>> import torch
    >>> from rearview import MaskedSelfAttention
    >>> layer = MaskedSelfAttention(8, 2)
    >>> with observe(layer, labels=["I", "love", "sushi"]) as seen:
    ...     out = layer(torch.randn(1, 3, 8))
    >>> seen.tile(0, 1).sum(-1)
    tensor([1.0000, 1.0000, 1.0000])
    """
    # Here, so that `import rearview` does not load the models.
    from rearview.observe import own

    found = _attention_layers(model)
    chosen = chosen_layers(layers, [each.name for each in found])
    for number in chosen:
        if (count := found[number].heads) is not None:
            chosen_heads(heads, count, found[number].name)
    map_size = None if map_size is None else whole_number(map_size, "map_size", at_least=1)
    links = whole_number(links, "links", at_least=0)
    seen = Seen(labels=labels, source_labels=source_labels, title=type(model).__name__, model_layers=len(found))
    watcher = _Watcher(seen, found, chosen, heads, map_size=map_size, links=links, budget=_budget(keep))
    if any(each.module in _watched for each in found):
        raise RearviewError(
            "observe: this model is being watched already. Leave the first `with observe(...)` before the next."
        )
    with ExitStack() as stack:
        _watched.update(each.module for each in found)
        stack.callback(lambda: [_watched.discard(each.module) for each in found])
        stack.callback(watcher.finish)
        stack.enter_context(own.watching([each for each in found if isinstance(each.module, own.OWN)], watcher.see))
        if others := [each for each in found if not isinstance(each.module, own.OWN)]:
            from rearview.observe import theirs

            stack.enter_context(theirs.watching(others, watcher.see))
        yield seen
    seen._names.check(seen)


class _Watcher:
    """Brings each call of a layer to that layer's recorder, in the positions of the sequence."""

    def __init__(
        self,
        seen: Seen,
        found: list[Found],
        chosen: list[int],
        heads: Any,
        *,
        map_size: int | None,
        links: int,
        budget: Budget,
    ):
        self._heads = heads
        self._recorders = {
            found[number].module: Recorder(
                seen,
                found[number].name,
                found[number].kind,
                number,
                None,
                map_size=map_size,
                links=links,
                budget=budget,
            )
            for number in chosen
        }
        # Where the queries of the latest self-attention stood: those of a cross attention behind it stand there too.
        self._latest: int = 0

    def see(self, found: Found, sight: Sight) -> None:
        at = self._position(sight)
        recorder = self._recorders.get(found.module)
        if recorder is None:
            return
        if self._heads is not None:
            recorder.heads = chosen_heads(self._heads, sight.query.shape[1], found.name)
        if sight.is_cross and recorder.kind != "cross":
            recorder.kind = "cross"
        recorder.see(
            Glance.of(
                sight.query,
                sight.key,
                at=at,
                dropped=sight.dropped,
                heads=recorder.heads,
                **sight.options,
            )
        )

    def finish(self) -> None:
        for recorder in self._recorders.values():
            recorder.finish()

    def _position(self, sight: Sight) -> int:
        if sight.is_cross:
            return self._latest
        start = sight.options.get("q_start")
        if start is None:
            start = sight.key.shape[2] - sight.query.shape[2]
        self._latest = sight.dropped + start if sight.at is None else sight.at
        return self._latest


def _attention_layers(model: Any) -> list[Found]:
    if not isinstance(model, nn.Module):
        raise BadArgument("model", expected="a torch.nn.Module", came=type(model).__name__)
    from rearview.observe.own import own_layers

    found = own_layers(model)
    if "transformers" in sys.modules:
        from rearview.observe import theirs

        found += theirs.their_layers(model)
    if not found:
        raise Unsupported(
            f"{type(model).__name__} cannot be watched",
            [
                "no layer of it is one of Rearview's (MaskedSelfAttention, or those of GPT, BERT and T5)",
                "no layer of it goes through the attention interface of transformers",
            ],
            advice="With the queries and keys at hand, rearview.attention.statistics measures one attention.",
        )
    order = {module: n for n, module in enumerate(model.modules())}
    found.sort(key=lambda each: order[each.module])
    # torch.compile puts its own name in front of each.
    return [replace(each, name=each.name.replace("_orig_mod.", "") or type(each.module).__name__) for each in found]


def _budget(keep: str | bool | int | None) -> Budget:
    is_size = isinstance(keep, int) and keep >= 0
    if keep is not None and keep != "auto" and not is_size:
        expected = 'a number of bytes, "auto", True for everything or None for nothing'
        raise BadArgument("keep", expected=expected, came=repr(keep))
    return Budget.of(keep)
