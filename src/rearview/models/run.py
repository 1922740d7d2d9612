"""How a stack of blocks is run: masks joined once for all layers, activations kept or computed again.

>>> from rearview import causal, documents, window
>>> join((causal(), causal() & window(2)), documents([0, 0, 1]), None)
(causal() & documents([0, 0, 1]), causal() & window(2) & documents([0, 0, 1]))
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rearview.attention import KeyValueCache
from rearview.errors import BadArgument
from rearview.masks import Mask


def join(masks: tuple[Mask, ...], narrowing: Mask | None, cache: list[KeyValueCache] | None) -> tuple[Mask, ...]:
    """Each layer's mask for this call. Layers that share a mask share the joined one, which remembers its ranges."""
    if narrowing is not None and not isinstance(narrowing, Mask):
        raise BadArgument("mask", expected="a Mask such as documents(ids)", came=type(narrowing).__name__)
    if narrowing is None and (not cache or cache[0].starts is None):
        return masks
    joined: dict[int, Mask] = {}
    for mask in masks:
        if id(mask) not in joined:
            narrowed = mask if narrowing is None else mask & narrowing
            joined[id(mask)] = cache[0].placed(narrowed) if cache else narrowed
    return tuple(joined[id(mask)] for mask in masks)


def run_block(model: Any, block: nn.Module, x: Tensor, **options: Any) -> Tensor:
    """`block(x, **options)`, keeping nothing inside when the model asks for gradient checkpointing."""
    if model.gradient_checkpointing and model.training and torch.is_grad_enabled():
        return checkpoint(block, x, use_reentrant=False, **options)
    return block(x, **options)
