"""Functions that a compiled model runs as they are, between two of its graphs.

>>> outside_graphs(len)("abc")
3
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import torch


def outside_graphs(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself while nothing is compiled: the compiler is slow to load, and is not loaded for this."""
    if "torch._dynamo" not in sys.modules:
        return function
    return cast(Callable[..., Any], torch.compiler.disable(function))
