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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import MethodType
from typing import Any, Self

from torch.utils._python_dispatch import TorchDispatchMode

# Without this switch flex_attention insists on the compiler, which does not work under a dispatch mode: the attempt
# would break flex_attention for the rest of the process.
SWITCH = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
COMPILER = "torch._dynamo"


class OpMode(TorchDispatchMode):
    """A dispatch mode that also gets operators which call functions of the user, such as flex_attention.

    Torch keeps its compiler away from the ops of a mode, for which it would import the compiler at the first op: that
    takes seconds, and is needed only where the program has imported it.
    """

    supports_higher_order_operators = True

    def __init_subclass__(cls, **options: Any) -> None:
        own = cls.__dict__.get("__torch_dispatch__")
        super().__init_subclass__(**options)
        if own is not None:
            method = _UntilCompiler(own, cls.__torch_dispatch__)
            cls.__torch_dispatch__ = method  # pyright: ignore[reportAttributeAccessIssue]


class _UntilCompiler:
    """A method that is replaced by another, for good, once the program has imported the compiler."""

    def __init__(self, own: Callable[..., Any], kept_from_compiler: Callable[..., Any]):
        self.own, self.kept_from_compiler = own, kept_from_compiler

    def __get__(self, mode: object, kind: type) -> Callable[..., Any]:
        method = self.own
        if COMPILER in sys.modules:
            method = self.kept_from_compiler
            kind.__torch_dispatch__ = method
        return method if mode is None else MethodType(method, mode)


class EveryOp(OpMode):
    """A mode under which flex_attention runs, too."""

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
