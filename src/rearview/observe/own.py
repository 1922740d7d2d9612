"""Watching the layers of the house: GPT, BERT, T5, `MaskedSelfAttention`, and whatever is built of them.

Such a layer calls `self.attend`. While it is watched, that is a function which calls `attend` with the same arguments,
returns its answer as it is, and shows the arguments to a recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rearview.attention import MaskedSelfAttention, attend
from rearview.attention.outside import outside_graphs
from rearview.errors import Unsupported
from rearview.masks import Mask
from rearview.masks.behind import Behind
from rearview.models import BERT
from rearview.models.attention import CrossAttention, SelfAttention
from rearview.observe.found import Found, Sight
from rearview.observe.glance import OPTIONS

OWN = (SelfAttention, CrossAttention, MaskedSelfAttention)


def own_layers(model: nn.Module) -> list[Found]:
    """The layers of the house in a model."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, OWN):
            heads = module.num_heads if isinstance(module, MaskedSelfAttention) else module.heads
            found.append(Found(name, module, _kind(model, name, module), heads))
    return found


def _kind(model: nn.Module, name: str, module: nn.Module) -> str:
    if isinstance(module, CrossAttention):
        return "cross"
    return "encoder" if isinstance(model, BERT) or "encoder" in name.split(".") else "self"


@contextmanager
def watching(layers: list[Found], see: Callable[[Found, Sight], None]) -> Iterator[None]:
    """Show every call of these layers to `see`."""
    try:
        for found in layers:
            found.module.__dict__["attend"] = _Shown(_shown(found, see))
        yield
    finally:
        for found in layers:
            # The class has the plain one.
            found.module.__dict__.pop("attend", None)


class _Shown:
    """The watching function. In a copy of the layer, or in a file, it is `attend` itself."""

    def __init__(self, function: Callable[..., Tensor]):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _plain, ()


def _plain() -> Callable[..., Any]:
    return attend


def _shown(found: Found, see: Callable[[Found, Sight], None]) -> Callable[..., Tensor]:
    def show(query: Tensor, key: Tensor, options: dict[str, Any]) -> None:
        mask: Mask = options["mask"]
        if _is_uneven(mask):
            raise Unsupported(
                "Prompts of unequal length cannot be watched together",
                ["each stands at positions of its own in the cache, and is forgotten up to its own length"],
                advice="Generate from prompts of equal length, or from one at a time.",
            )
        chosen = {name: options[name] for name in OPTIONS if name in options}
        see(found, Sight(query, key, is_cross=found.kind == "cross", options=chosen))

    # A compiled model runs the watcher as it is, between two graphs.
    show_outside = outside_graphs(show)

    def watched(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        out = attend(query, key, value, **options)
        show_outside(query, key, options)
        return out

    return watched


def _is_uneven(mask: Mask) -> bool:
    return isinstance(mask, Behind) or any(_is_uneven(part) for part in getattr(mask, "parts", ()))
