"""Random inputs for a model: tokens where it has an embedding, else frames as wide as its first layer.

>>> from torch import nn
>>> guess(nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10)), length=8, batch=2, seed=0).shape
torch.Size([2, 8])
>>> guess(nn.GRU(5, 5, batch_first=True), length=8, batch=2, seed=0).shape
torch.Size([2, 8, 5])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument


def guess(model: Any, *, length: int, batch: int, seed: int) -> Tensor:
    """Random tokens [batch, time], or frames [batch, time, features]."""
    random = torch.Generator().manual_seed(seed)
    device = next((p.device for p in model.parameters()), torch.device("cpu")) if isinstance(model, nn.Module) else None
    vocab = vocabulary(model)
    if vocab is not None:
        # Ids near zero are often padding, which a model may treat specially.
        low = min(5, vocab // 2)
        return torch.randint(low, vocab, (batch, length), generator=random).to(device)
    width = _features(model)
    if width is not None:
        return torch.randn(batch, length, width, generator=random).to(device)
    raise BadArgument(
        "inputs",
        expected="a model whose inputs can be guessed from its embedding or its first layer",
        got=type(model).__name__,
        advice="Return (model, inputs).",
    )


def vocabulary(model: Any) -> int | None:
    """The size of the vocabulary; None for a model that reads frames."""
    if not isinstance(model, nn.Module):
        return None
    config = getattr(model, "config", None)
    for holder in (config, getattr(config, "text_config", None)):
        size = getattr(holder, "vocab_size", None)
        if isinstance(size, int):
            return size
    first = next(iter(_leaves(model)), None)
    # A compiled module keeps the name of its class only.
    is_embedding = isinstance(first, nn.Embedding) or getattr(first, "original_name", "") == "Embedding"
    weight = getattr(first, "weight", None)
    return len(weight) if is_embedding and isinstance(weight, Tensor) else None


def _features(model: Any) -> int | None:
    for layer in _leaves(model) if isinstance(model, nn.Module) else ():
        for name in ("in_features", "in_channels", "input_size"):
            if isinstance(width := getattr(layer, name, None), int):
                return width
    return None


def _leaves(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
