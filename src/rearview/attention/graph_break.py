"""Functions that a compiled model runs eagerly, between two of its graphs.

>>> outside_graphs(len)("abc")
3
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable(function)`, or the function itself while the compiler, slow to import, is not loaded."""
    if "torch._dynamo" not in sys.modules:
        return function
    return cast(Callable[..., Any], torch.compiler.disable(function))
