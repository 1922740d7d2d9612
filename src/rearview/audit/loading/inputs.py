"""Inputs for a model that came without: tokens where it has an embedding, else frames as wide as its first layer.

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
        # Ids near zero are often padding, which a model may treat apart.
        low = min(5, vocab // 2)
        return torch.randint(low, vocab, (batch, length), generator=random).to(device)
    width = _features(model)
    if width is not None:
        return torch.randn(batch, length, width, generator=random).to(device)
    raise BadArgument(
        "inputs",
        expected="a model whose inputs can be guessed, from its embedding or its first layer",
        came=type(model).__name__,
        advice="Return the inputs too: (model, inputs).",
    )


def vocabulary(model: Any) -> int | None:
    """How many tokens the model knows; None for a model of frames."""
    if not isinstance(model, nn.Module):
        return None
    config = getattr(model, "config", None)
    for holder in (config, getattr(config, "text_config", None)):
        size = getattr(holder, "vocab_size", None)
        if isinstance(size, int):
            return size
    first = next(iter(_leaves(model)), None)
    return first.num_embeddings if isinstance(first, nn.Embedding) else None


def _features(model: Any) -> int | None:
    for layer in _leaves(model) if isinstance(model, nn.Module) else ():
        for name in ("in_features", "in_channels", "input_size"):
            if isinstance(width := getattr(layer, name, None), int):
                return width
    return None


def _leaves(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if any(True for _ in module.parameters(recurse=False))]
