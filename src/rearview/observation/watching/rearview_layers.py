"""Rearview's own attention layers (GPT, BERT, T5, `MaskedSelfAttention`, and models built of them), and watching them.

Such a layer calls `self.attend`. While it is watched, that is a function that calls `attend` with the same arguments,
returns its result, and reports the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from rearview.attention import MaskedSelfAttention, attend
from rearview.attention.call import Call
from rearview.attention.graph_break import outside_graphs
from rearview.attention.layer_call import LayerCall
from rearview.attention.mask_edits import edited, edits_of
from rearview.errors import Unsupported
from rearview.masks import Mask, causal
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
    with _attending({layer.module: _Attend(layer.module, _reporter(layer, see)) for layer in layers}):
        yield


@contextmanager
def with_edits(modules: list[nn.Module]) -> Iterator[None]:
    """Compute the attention of these layers with the edits of their masks (`rearview.attention.mask_edits`)."""
    # The function of a layer that is watched reads the edits already.
    with _attending({module: _Attend(module) for module in modules if "attend" not in module.__dict__}):
        yield


@contextmanager
def _attending(functions: dict[nn.Module, _Attend]) -> Iterator[None]:
    """Let each module call its function instead of `attend`."""
    before = {module: module.__dict__.get("attend") for module in functions}
    try:
        for module, function in functions.items():
            module.__dict__["attend"] = function
        yield
    finally:
        for module, function in before.items():
            # The class has the plain function.
            module.__dict__.pop("attend", None)
            if function is not None:
                module.__dict__["attend"] = function


class _Attend:
    """`attend` for one layer, with the edits of its mask, and reported. A copy of the layer has `attend` itself."""

    def __init__(self, module: nn.Module, report: Callable[..., None] | None = None):
        self._module, self._report = weakref.ref(module), report

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *, engine: str = "auto", mask: Mask = causal(), **options: Any
    ) -> Tensor:
        module = self._module()
        if module is not None and edits_of(module):
            _check_positions(mask, "edited")
            mask = edited(module, mask, heads=query.shape[1])
        out = attend(query, key, value, engine=engine, mask=mask, **options)
        if self._report is not None:
            self._report(query, key, value, {"mask": mask, **options})
        return out

    def __reduce__(self) -> Any:
        return _plain, ()


def _plain() -> Callable[..., Any]:
    return attend


def _reporter(layer: AttentionLayer, see: Callable[[LayerCall], None]) -> Callable[..., None]:
    def report(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> None:
        call = Call.of(query, key, value, **options).gathered()
        _check_positions(call.mask, "watched")
        see(LayerCall(layer.module, call, is_cross=layer.kind == "cross"))

    # A compiled model runs this as it is, between two graphs.
    return outside_graphs(report)


def _check_positions(mask: Mask, what: str) -> None:
    if any(part.is_lagged for part in mask.walk()):
        raise Unsupported(
            f"Prompts of unequal length cannot be {what} together",
            ["their positions in the cache differ, and so do their masks"],
            advice="Generate from prompts of equal length, or from one at a time.",
        )
