"""Top-k with equal scores: which of them is taken is the kernel's own business, and may change with the length.

>>> import torch
>>> from rearview.audit.ties import first_of_equals
>>> with first_of_equals():
...     torch.zeros(5).topk(2).indices.tolist()
[0, 1]

A choice among equals is no hearing. Under `first_of_equals` the earliest is taken, whatever comes after it; a
difference that is then gone came from ties.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

TIES = "top-k takes another of equal scores in another shape, which is no hearing"


class first_of_equals(TorchDispatchMode):
    """Top-k and sort take the earliest of equal scores."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.topk.default:
            return _topk(*args, **kwargs)
        if func is torch.ops.aten.sort.default:
            return _sorted(*args, **kwargs)
        return func(*args, **kwargs)


def _sorted(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, torch.zeros_like(x, dtype=torch.long)
    values, indices = _sorted(x, dim, largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
