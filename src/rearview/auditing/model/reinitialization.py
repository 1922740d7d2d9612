"""Copies of a model with parameters drawn again, so that no path is closed by the values of its weights alone.

>>> import torch
>>> from rearview.auditing.model.reinitialization import reinitialized, zero_gates
>>> model = torch.nn.Linear(4, 4)
>>> _ = torch.nn.init.zeros_(model.weight)
>>> zero_gates(model)
['weight']
>>> bool(reinitialized(model, "zeros", seed=0).weight.any()), bool(model.weight.any())
(True, False)
"""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor, nn

Which = Literal["zeros", "all"]
# A model with more parameters is not copied.
MOST_PARAMETERS = 1 << 28


def zero_gates(model: object) -> list[str]:
    """Names of all-zero parameters that close a path: projections, LoRA's B, gains. Biases close none."""
    if not isinstance(model, nn.Module):
        return []
    return [name for name, p in model.named_parameters() if _is_zero(p) and not (p.ndim == 1 and name.endswith("bias"))]


def reinitialized(model: nn.Module, which: Which, *, seed: int) -> nn.Module:
    """A deep copy in which the all-zero parameters ("zeros"), or all of them, are drawn again."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.is_floating_point() and parameter.numel() and (which == "all" or _is_zero(parameter)):
                drawn = torch.randn(parameter.shape, generator=generator) * _spread(parameter)
                # Gains are near one and stay there; everything else is centred at zero.
                centre = 1.0 if parameter.ndim <= 1 and _is_constant(parameter, 1.0) else 0.0
                parameter.copy_((drawn + centre).to(parameter))
    return other


def _spread(parameter: Tensor) -> float:
    if parameter.ndim >= 2:
        return 1.0 / math.sqrt(max(1, parameter[0].numel()))
    return 0.3


def _is_zero(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and parameter.is_floating_point() and not bool(parameter.detach().any())


def _is_constant(parameter: Tensor, value: float) -> bool:
    return bool((parameter.detach() == value).all())
