"""The attention layers of transformers models, and watching them."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import nn

from rearview.integrations.transformers import watcher
from rearview.integrations.transformers.registration import check_release
from rearview.observation.watching.attention_layer import AttentionLayer


def transformers_layers(model: nn.Module) -> list[AttentionLayer]:
    """The layers of a model that go through the attention interface of transformers."""
    found = [
        AttentionLayer(name, module, "self" if getattr(module, "is_causal", True) else "encoder", _heads(module))
        for name, module in watcher.attention_modules(model)
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


def watching(layers: list[AttentionLayer], see: watcher.See) -> AbstractContextManager[None]:
    """Report every call of these layers to `see`."""
    return watcher.watching([layer.module for layer in layers], see)
