"""Watching the attention of transformers models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torch import nn

from rearview.integrations.transformers import watch
from rearview.integrations.transformers.release import check_release
from rearview.observe.found import Found, Sight


def their_layers(model: nn.Module) -> list[Found]:
    """The layers of a model that go through the attention interface of transformers."""
    found = [
        Found(name, module, "self" if getattr(module, "is_causal", True) else "encoder", _heads(module))
        for name, module in watch.attention_modules(model)
    ]
    if found:
        check_release(f"observe({type(model).__name__})")
    return found


def _heads(module: nn.Module) -> int | None:
    config = getattr(module, "config", None)
    for owner, name in ((module, "num_heads"), (module, "n_heads"), (config, "num_attention_heads")):
        if isinstance(count := getattr(owner, name, None), int):
            return count
    return None


@contextmanager
def watching(layers: list[Found], see: Callable[[Found, Sight], None]) -> Iterator[None]:
    """Show every call of these layers to `see`."""
    by_module = {found.module: found for found in layers}

    def happened(module: nn.Module, what: watch.Happened) -> None:
        call = what.call
        sight = Sight(
            call.query,
            call.key,
            is_cross=what.is_cross,
            options={**call.options, "sinks": call.sinks},
            at=what.at,
            dropped=what.dropped,
        )
        see(by_module[module], sight)

    with watch.watching(list(by_module), happened):
        yield
