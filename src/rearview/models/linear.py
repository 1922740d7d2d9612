"""A linear layer, and the layout of its weight in which one row is multiplied quickest.

    >>> import torch
    >>> layer, x = Linear(512, 1024), torch.randn(1, 1, 512)
    >>> with torch.no_grad(), ByColumns(layer, steps=100):
    ...     quick = layer(x)
    >>> torch.allclose(quick, layer(x), atol=1e-5)
    True

The step of a model that generates is bound by reading every weight once. A weight with more features out than in is
read nearly twice as fast by columns, [in, out], as by rows (torch's BLAS adds up whole columns; by rows it makes many
short sums). Training keeps the usual layout, so whoever generates makes such copies for as long as it generates.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# With more rows the two layouts are even.
FEW_ROWS = 2
# Smaller weights stay in the processor's cache, where either layout is quick.
LARGE_WEIGHT = 1 << 18
# For fewer steps the copies are not worth making.
MANY_STEPS = 16


class Linear(nn.Linear):
    """`nn.Linear`, the same numbers to rounding."""

    # The weight by columns, [in, out], while somebody generates.
    columns: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.columns is None or x.numel() > FEW_ROWS * self.in_features:
            return F.linear(x, self.weight, self.bias)
        return F.linear(x, self.columns.t(), self.bias)


class ByColumns:
    """In a `with` statement: the large weights of a model by columns, as they were when this was made."""

    def __init__(self, model: nn.Module, *, steps: int):
        layers = [module for module in model.modules() if isinstance(module, Linear)] if steps >= MANY_STEPS else []
        with torch.no_grad():
            self._columns = [(each, each.weight.t().contiguous()) for each in layers if _is_worth_it(each)]

    # Past nn.Module's __setattr__, which looks for parameters for longer than a small layer computes.
    def __enter__(self) -> None:
        for layer, columns in self._columns:
            vars(layer)["columns"] = columns

    def __exit__(self, *_: object) -> None:
        for layer, _columns in self._columns:
            vars(layer).pop("columns", None)


def _is_worth_it(layer: Linear) -> bool:
    weight = layer.weight
    tall = layer.out_features > layer.in_features and weight.numel() >= LARGE_WEIGHT
    return tall and weight.device.type == "cpu" and weight.dtype == torch.float32
