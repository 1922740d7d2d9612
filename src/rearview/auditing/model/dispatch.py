"""Dispatch modes under which every model runs, also one with flex_attention.

>>> import torch
>>> from torch.nn.attention.flex_attention import flex_attention
>>> from rearview.auditing.model.dispatch import EveryOp
>>> class Names(EveryOp):
...     def __torch_dispatch__(self, func, types, args=(), kwargs=None):
...         print(func)
...         return func(*args, **(kwargs or {}))
>>> x = torch.randn(1, 1, 4, 8)
>>> with Names():
...     _ = flex_attention(x, x, x)    # doctest: +ELLIPSIS
aten...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode

# Without this switch flex_attention insists on the compiler, which does not work under a dispatch mode: the attempt
# would break flex_attention for the rest of the process.
SWITCH = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"


class EveryOp(TorchDispatchMode):
    """A dispatch mode that also gets operators which call functions of the user, such as flex_attention."""

    supports_higher_order_operators = True

    def __enter__(self) -> Self:
        self._flex = ExitStack()
        self._flex.enter_context(flex_uncompiled())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._flex.close()


@contextmanager
def flex_uncompiled() -> Iterator[None]:
    """Let flex_attention call its operator directly, where the program has imported it."""
    module = sys.modules.get("torch.nn.attention.flex_attention")
    before = getattr(module, SWITCH, None)
    if module is None or before is None:
        yield
        return
    setattr(module, SWITCH, True)
    try:
        yield
    finally:
        setattr(module, SWITCH, before)
