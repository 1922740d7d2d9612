"""Rearview's own attention layers (GPT, BERT, T5, `MaskedSelfAttention`, and models built of them), and watching them.

Such a layer calls `self.attend`. While it is watched, that is a function that calls `attend` with the same arguments,
returns its result, and reports the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rearview.attention import MaskedSelfAttention, attend
from rearview.attention.call import Call
from rearview.attention.graph_break import outside_graphs
from rearview.attention.layer_call import LayerCall
from rearview.errors import Unsupported
from rearview.masks import Mask
from rearview.masks.lagged import Lagged
from rearview.models import BERT
from rearview.models.attention import CrossAttention, SelfAttention
from rearview.observation.watching.attention_layer import AttentionLayer

OWN = (SelfAttention, CrossAttention, MaskedSelfAttention)


def rearview_layers(model: nn.Module) -> list[AttentionLayer]:
    """The layers of a model that are Rearview's own."""
    found = []
    for name, module in model.named_modules():
        if isinstance(module, OWN):
            heads = module.num_heads if isinstance(module, MaskedSelfAttention) else module.heads
            found.append(AttentionLayer(name, module, _kind(model, name, module), heads))
    return found


def _kind(model: nn.Module, name: str, module: nn.Module) -> str:
    if isinstance(module, CrossAttention):
        return "cross"
    return "encoder" if isinstance(model, BERT) or "encoder" in name.split(".") else "self"


@contextmanager
def watching(layers: list[AttentionLayer], see: Callable[[LayerCall], None]) -> Iterator[None]:
    """Report every call of these layers to `see`."""
    try:
        for layer in layers:
            layer.module.__dict__["attend"] = _Reporting(_reporting(layer, see))
        yield
    finally:
        for layer in layers:
            # The class has the plain function.
            layer.module.__dict__.pop("attend", None)


class _Reporting:
    """A function that reports calls. In a copy of the layer, or in a file, it is `attend` itself."""

    def __init__(self, function: Callable[..., Tensor]):
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.function(*args, **kwargs)

    def __reduce__(self) -> Any:
        return _plain, ()


def _plain() -> Callable[..., Any]:
    return attend


def _reporting(layer: AttentionLayer, see: Callable[[LayerCall], None]) -> Callable[..., Tensor]:
    def report(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> None:
        call = Call.of(query, key, value, **options).gathered()
        if _is_uneven(call.mask):
            raise Unsupported(
                "Prompts of unequal length cannot be watched together",
                ["their positions in the cache differ, and so do their masks"],
                advice="Generate from prompts of equal length, or from one at a time.",
            )
        see(LayerCall(layer.module, call, is_cross=layer.kind == "cross"))

    # A compiled model runs this as it is, between two graphs.
    report_outside = outside_graphs(report)

    def watched(query: Tensor, key: Tensor, value: Tensor, *, engine: str = "auto", **options: Any) -> Tensor:
        out = attend(query, key, value, engine=engine, **options)
        report_outside(query, key, value, options)
        return out

    return watched


def _is_uneven(mask: Mask) -> bool:
    return any(isinstance(part, Lagged) for part in mask.walk())
