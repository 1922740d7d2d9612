"""Masks from FlexAttention's `mask_mod(b, h, q_idx, kv_idx)`.

>>> from rearview.masks.exchange import from_mask_mod
>>> from_mask_mod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx).to_bool(3).int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

import inspect
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.exchange.flex import MaskMod
from rearview.masks.frame import whole_number
from rearview.masks.mask import Mask
from rearview.masks.unstructured import Undeclared, where


def from_mask_mod(mask_mod: MaskMod, *, batch: int | None = None, heads: int | None = None, q_start: int = 0) -> Mask:
    """A mask from a FlexAttention `mask_mod(b, h, q_idx, kv_idx)`, True = heard.

    A function that reads `b` or `h` must declare their number: `batch=4`. FlexAttention counts rows from 0:
    `q_start` is the position of row 0, which is 0 unless the function was made for a cache.

    >>> def causal_mask(b, h, q_idx, kv_idx):
    ...     return q_idx >= kv_idx
    >>> from_mask_mod(causal_mask)
    where(causal_mask)
    """
    _check_parameters(mask_mod)
    q_start = whole_number(q_start, "q_start", at_least=0)

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return evaluated(mask_mod, b, h, i - q_start, j)

    rule.__name__ = getattr(mask_mod, "__name__", type(mask_mod).__name__)
    return where(rule, batch=batch, heads=heads)


def evaluated(mask_mod: MaskMod, *indices: Tensor | Undeclared) -> Tensor:
    """The function at indices that broadcast, called as FlexAttention calls it: with one scalar each, under vmap.

    A mask_mod need not broadcast: `table[h][q_idx]` is right for scalars and something else for tensors.
    """
    from torch.nn.attention.flex_attention import create_mask

    tensors = [index for index in indices if isinstance(index, Tensor)]
    given: list[Any] = [AnyItem(i.axis, tensors[0]) if isinstance(i, Undeclared) else i for i in indices]
    if all(tensor.ndim == 0 for tensor in tensors):
        return mask_mod(*given)
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    if len(shape) > 4:
        raise BadArgument("mask_mod", expected="indices of at most 4 axes", got=f"shape {list(shape)}")

    def at(place: tuple[Tensor, ...], index: Any) -> Any:
        if not isinstance(index, Tensor):
            return index
        index = index.view((1,) * (4 - index.ndim) + index.shape)
        # An axis of size 1 is not indexed, so that vmap does not expand what does not vary.
        return index[tuple(p if size > 1 else 0 for p, size in zip(place, index.shape, strict=True))]

    def pointwise(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
        answer = mask_mod(*(at((a, b, c, d), index) for index in given))
        if not isinstance(answer, Tensor):
            raise BadArgument("mask_mod", expected="a function that returns a bool tensor", got=type(answer).__name__)
        return answer

    sizes = (1,) * (4 - len(shape)) + tuple(shape)
    return create_mask(pointwise, *sizes, device=tensors[0].device).view(shape)


class AnyItem(Undeclared):
    """An undeclared index that can still make tensors: torch's and_masks call `b.new_ones(())`."""

    def __init__(self, axis: str, like: Tensor):
        super().__init__(axis)
        self.device = like.device
        self.new_ones, self.new_zeros, self.new_full = like.new_ones, like.new_zeros, like.new_full


def _check_parameters(mask_mod: MaskMod) -> None:
    try:
        inspect.signature(mask_mod).bind(0, 0, 0, 0)
    except (TypeError, ValueError) as error:
        raise BadArgument(
            "from_mask_mod(mask_mod)",
            expected="a function (b, h, q_idx, kv_idx)",
            got=f"{getattr(mask_mod, '__name__', repr(mask_mod))} ({error})",
            advice="For a rule on two positions use where(lambda i, j: ...).",
        ) from error
