"""observe(): record the attention of a model while it runs, whatever kernel computes it.

    >>> import torch
    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
    >>> with observe(model, layers=-1, heads=[0, 1]) as seen:
    ...     logits = model(torch.tensor([[1, 2, 3, 4]]))
    >>> seen.layers[0].name, seen.layers[0].heads
    ('blocks.1.attention', (0, 1))

The model computes what it always computes, with its own kernels; queries and keys are read on the way, and their
statistics are computed one strip of queries at a time. Memory grows with the length, not with its square.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Literal
from weakref import WeakSet

from torch import nn

from rearview.attention.call_slices import of_heads
from rearview.attention.layer_call import LayerCall
from rearview.errors import BadArgument, RearviewError, Unsupported
from rearview.masks.frame import whole_number
from rearview.observation.result.observation import Observation
from rearview.observation.watching.attention_layer import AttentionLayer
from rearview.observation.watching.recorder import MemoryBudget, Recorder
from rearview.observation.watching.selection import HeadChoice, LayerChoice, chosen_heads, chosen_layers

# The modules that are being watched. Two watchers of one layer would undo each other's replacements.
_watched: WeakSet[nn.Module] = WeakSet()


@contextmanager
def observe(
    model: nn.Module,
    *,
    layers: LayerChoice | Iterable[LayerChoice] | None = None,
    heads: HeadChoice | Iterable[HeadChoice] | None = None,
    map_size: int | None = 64,
    links: int = 32,
    labels: Sequence[str] | None = None,
    source_labels: Sequence[str] | None = None,
    keep: Literal["auto"] | bool | int | None = "auto",
) -> Iterator[Observation]:
    """Watch the attention of `model` inside a `with` block; the observation can be used during and after it.

    Works for models made of Rearview's layers and for models of transformers, with their fused kernels, and changes
    nothing that they compute. A call that continues the sequence (generation with a cache) is joined to the calls
    before it; any other call begins a new sequence, and the observation is that of the latest. Weights are those before
    dropout.

    Args:
        layers: the layers to watch, all by default: numbers, names ("decoder.*"), slices, or a list of these.
        heads: the heads of these layers, all by default: numbers, slices, or a list of these.
        map_size: the most bins per side of a map; None for no maps.
        links: the number of links to keep per head, the strongest first.
        labels: the tokens as text, one per position; `seen.labels = ...` sets them afterwards.
        source_labels: the tokens of an encoder's input, where there is a decoder too.
        keep: the memory for queries and keys, from which exact weights are computed: a number of bytes, "auto" for
            256 MiB, True for all of them, None for none.

    >>> import torch
    >>> from rearview import MaskedSelfAttention
    >>> layer = MaskedSelfAttention(8, 2)
    >>> with observe(layer, labels=["I", "love", "sushi"]) as seen:
    ...     out = layer(torch.randn(1, 3, 8))
    >>> seen.tile(0, 1).sum(-1)
    tensor([1.0000, 1.0000, 1.0000])
    """
    found = attention_layers(model)
    chosen = chosen_layers(layers, [each.name for each in found])
    for number in chosen:
        if (count := found[number].heads) is not None:
            chosen_heads(heads, count, found[number].name)
    map_size = None if map_size is None else whole_number(map_size, "map_size", at_least=1)
    links = whole_number(links, "links", at_least=0)
    budget = MemoryBudget.of(keep)
    seen = Observation(labels=labels, source_labels=source_labels, title=type(model).__name__, model_layers=len(found))
    recorders = {
        found[n].module: Recorder(seen, found[n].name, found[n].kind, n, None, map_size, links, budget) for n in chosen
    }
    watcher = _Watcher(recorders, heads)
    if any(each.module in _watched for each in found):
        raise RearviewError(
            "observe: this model is being watched already. Leave the first `with observe(...)` before starting another."
        )
    with ExitStack() as stack:
        _watched.update(each.module for each in found)
        stack.callback(lambda: [_watched.discard(each.module) for each in found])
        stack.callback(watcher.finish)
        stack.enter_context(watching(found, watcher.see))
        yield seen
    seen._names.check(seen)


@contextmanager
def watching(layers: Sequence[AttentionLayer], see: Callable[[LayerCall], None]) -> Iterator[None]:
    """Report every call of these layers, Rearview's own or those of transformers, to `see`."""
    # Imported here so that `import rearview` does not load the models.
    from rearview.observation.watching import rearview_layers

    own = [each for each in layers if isinstance(each.module, rearview_layers.OWN)]
    others = [each for each in layers if not isinstance(each.module, rearview_layers.OWN)]
    with ExitStack() as stack:
        stack.enter_context(rearview_layers.watching(own, see))
        if others:
            from rearview.observation.watching import transformers_layers

            stack.enter_context(transformers_layers.watching(others, see))
        yield


class _Watcher:
    """Passes each call of a layer to the recorder of the layer, with positions in the whole sequence."""

    def __init__(self, recorders: dict[nn.Module, Recorder], heads: HeadChoice | Iterable[HeadChoice] | None):
        self._recorders, self._heads = recorders, heads
        # The position of the first query of the latest self-attention, which the next cross attention shares.
        self._latest = 0

    def see(self, one: LayerCall) -> None:
        if not one.is_cross:
            self._latest = one.start
        recorder = self._recorders.get(one.module)
        if recorder is None:
            return
        if one.is_cross:
            recorder.kind = "cross"
        call = one.in_sequence(self._latest)
        if self._heads is not None:
            recorder.heads = chosen_heads(self._heads, call.heads, recorder.name)
            call = of_heads(call, recorder.heads)
        recorder.record(call)

    def finish(self) -> None:
        for recorder in self._recorders.values():
            recorder.finish()


def attention_layers(model: nn.Module) -> list[AttentionLayer]:
    """The attention layers of a model, in its order; raises if none of them can be watched."""
    if not isinstance(model, nn.Module):
        raise BadArgument("model", expected="a torch.nn.Module", got=type(model).__name__)
    from rearview.observation.watching.rearview_layers import rearview_layers

    found = rearview_layers(model)
    if "transformers" in sys.modules:
        from rearview.observation.watching import transformers_layers

        found += transformers_layers.transformers_layers(model)
    if not found:
        raise Unsupported(
            f"{type(model).__name__} cannot be watched",
            [
                "no layer of it is one of Rearview's (MaskedSelfAttention, or those of GPT, BERT and T5)",
                "no layer of it uses the attention interface of transformers",
            ],
            advice="If you have the queries and keys of a layer, rearview.statistics measures them.",
        )
    order = {module: n for n, module in enumerate(model.modules())}
    found.sort(key=lambda each: order[each.module])
    # torch.compile puts its own name in front of each name.
    return [replace(each, name=each.name.replace("_orig_mod.", "") or type(each.module).__name__) for each in found]
