"""What a model can be called with.

>>> import torch
>>> from rearview.audit.signature import first_name, parameter_names
>>> parameter_names(torch.nn.Linear(1, 1)), first_name(torch.nn.Linear(1, 1))
(frozenset({'input'}), 'input')
"""

from __future__ import annotations

import inspect
from typing import Any


def parameter_names(model: Any) -> frozenset[str]:
    """The names of its parameters; none where they are not known."""
    try:
        return frozenset(inspect.signature(getattr(model, "forward", model)).parameters)
    except (TypeError, ValueError):
        return frozenset()


def first_name(model: Any) -> str:
    """What it calls its first input."""
    try:
        return next(iter(inspect.signature(getattr(model, "forward", model)).parameters))
    except (TypeError, ValueError, StopIteration):
        return "input_ids"
