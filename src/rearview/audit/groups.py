"""Grouped products in float64, which torch does not have: one product for each group.

>>> import torch
>>> rows, weights, ends = torch.ones(3, 2).double(), torch.ones(2, 2, 2).double(), torch.tensor([1, 3]).int()
>>> with each_group():
...     torch.ops.aten._grouped_mm(rows, weights, ends).tolist()
[[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]

Mixtures of experts run so; without this nothing tells rounding from a leak in them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class each_group(TorchDispatchMode):
    """`_grouped_mm` of float64 rows with one matrix a group, as a loop."""

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _grouped(func, *args, **kwargs)
        return func(*args, **kwargs)


def _grouped(func: Any, rows: Tensor, weights: Tensor, ends: Tensor | None = None, *others: Any, **more: Any) -> Tensor:
    if (
        rows.ndim != 2
        or weights.ndim != 3
        or ends is None
        or any(other is not None for other in (*others, *more.values()))
    ):
        return func(rows, weights, ends, *others, **more)
    # Rows behind the last end belong to no group; torch leaves them as they are.
    out = rows.new_zeros(len(rows), weights.shape[-1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        out[start:end] = rows[start:end] @ weights[group]
        start = end
    return out
