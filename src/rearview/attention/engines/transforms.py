"""What torch.func may do to an engine whose backward pass is written by hand: map it over an axis, and no forward mode.

>>> import torch
>>> from rearview import attend
>>> x = torch.randn(3, 1, 2, 4, 8)
>>> torch.func.vmap(lambda x: attend(x, x, x, engine="blocks"))(x).shape
torch.Size([3, 1, 2, 4, 8])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from rearview.errors import Unsupported
from rearview.masks import Mask

Answer = tuple[Tensor, Tensor]


def mapped(
    apply: Callable[[Tensor, Tensor, Tensor], Answer],
    info: Any,
    in_dims: tuple,
    tensors: list[Tensor | None],
    *,
    mask: Mask,
    engine: str,
) -> tuple[Answer, tuple[int, int]]:
    """`apply(query, key, value)` for every index of the mapped axis at once; `tensors`: query, key, value, bias."""
    if mask.batch is not None or tensors[3] is not None:
        raise Unsupported(
            f"vmap over engine {engine!r}",
            ["the mask or the bias has a batch axis of its own, or there is a bias"],
            advice="Fold the mapped axis into the batch yourself, or use engine='reference'.",
        )
    # The mapped axis joins the batch: attention is the same for every item.
    size = info.batch_size
    folded = []
    for tensor, axis in zip(tensors[:3], in_dims[:3], strict=True):
        assert tensor is not None, "only the bias may be missing"
        whole = tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)
        folded.append(whole.flatten(0, 1))
    out, lse = apply(*folded)
    return (out.unflatten(0, (size, -1)), lse.unflatten(0, (size, -1))), (0, 0)


def no_forward_mode(engine: str) -> NoReturn:
    raise Unsupported(
        f"forward-mode derivatives of engine {engine!r}",
        ["it has a backward pass only"],
        advice="Use engine='reference'.",
    )
