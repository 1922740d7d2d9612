"""Twins: copies of a model with some parameters drawn anew, so that no path is dead by its weights alone.

>>> import torch
>>> from rearview.audit.twins import redrawn, zero_gates
>>> model = torch.nn.Linear(4, 4)
>>> _ = torch.nn.init.zeros_(model.weight)
>>> zero_gates(model)
['weight']
>>> bool(redrawn(model, "zeros", seed=0).weight.any()), bool(model.weight.any())
(True, False)
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rearview.audit.state import twin_of

Kind = Literal["zeros", "all"]
MOST_PARAMETERS = 1 << 28


def zero_gates(model: Any) -> list[str]:
    """Names of parameters that are all zero and close a path: projections, LoRA's B, gains. Biases do not."""
    if not isinstance(model, nn.Module):
        return []
    return [name for name, p in model.named_parameters() if _is_zero(p) and not (p.ndim == 1 and name.endswith("bias"))]


def redrawn(model: nn.Module, kind: Kind, *, seed: int) -> nn.Module:
    """A deep copy in which the all-zero parameters ("zeros"), or all of them, are drawn anew."""
    twin = twin_of(model)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.is_floating_point() and parameter.numel() and (kind == "all" or _is_zero(parameter)):
                drawn = torch.randn(parameter.shape, generator=generator) * _spread(parameter)
                # Gains are near one and stay there; everything else is centred.
                centre = 1.0 if parameter.ndim <= 1 and _is_constant(parameter, 1.0) else 0.0
                parameter.copy_((drawn + centre).to(parameter))
    return twin


def _spread(parameter: Tensor) -> float:
    if parameter.ndim >= 2:
        return 1.0 / math.sqrt(max(1, parameter[0].numel()))
    return 0.3


def _is_zero(parameter: Tensor) -> bool:
    return parameter.numel() > 0 and parameter.is_floating_point() and not bool(parameter.detach().any())


def _is_constant(parameter: Tensor, value: float) -> bool:
    return bool((parameter.detach() == value).all())
