"""Tensors as TMA can read and write them: rows of contiguous numbers, at multiples of 16 bytes.

>>> import torch
>>> is_expressible(torch.zeros(1, 5, 2, 64, dtype=torch.bfloat16).transpose(1, 2))
True
>>> is_expressible(torch.zeros(1, 1, 5, 63, dtype=torch.bfloat16))
False

Projections leave such tensors, also as [batch, time, heads, dim]. Others are copied: expanded heads, head dims that are
no multiple of 8, views that start at odd places.
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_expressible(tensor: Tensor) -> bool:
    """Whether TMA can read or write a tensor where it is: rows of contiguous numbers, at multiples of 16 bytes."""
    unit = 16 // tensor.element_size()
    if tensor.stride(3) != 1 or tensor.data_ptr() % 16:
        return False
    sizes_and_strides = zip(tensor.shape[:3], tensor.stride()[:3], strict=True)
    return all(size == 1 or (stride > 0 and stride % unit == 0) for size, stride in sizes_and_strides)


def expressible(tensor: Tensor) -> Tensor:
    """The tensor, or a copy that TMA can read."""
    return tensor if is_expressible(tensor) else _empty(tensor, tensor.shape[3]).copy_(tensor)


def _empty(like: Tensor, dim: int) -> Tensor:
    """Memory [batch, heads, rows, dim] that TMA can express."""
    unit = 16 // like.element_size()
    return like.new_empty((*like.shape[:3], -(-dim // unit) * unit))[..., :dim]


def answer_like(tensor: Tensor, dim: int, *, contiguous: bool) -> Tensor:
    """Memory for an answer with the shape of a tensor, except for the dim, and its strides where possible."""
    made = torch.empty_like(tensor) if not contiguous else tensor.new_empty((*tensor.shape[:3], dim))
    return made if is_expressible(made) else _empty(tensor, dim)


def as_asked(answer: Tensor, *, contiguous: bool) -> Tensor:
    """An answer without the padding of its rows."""
    # Rows that were padded for TMA, or that must be as a compiled graph was told.
    padded = answer.stride(2) != answer.shape[3] and answer.shape[3] % 8
    return answer.contiguous() if contiguous or padded else answer
