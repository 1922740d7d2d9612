"""A time budget that is kept: past it, the next module or forward pass that begins stops the audit.

>>> import time, torch
>>> from rearview.auditing.model.budget import TimeBudget, BudgetSpent
>>> try:
...     with TimeBudget(0.01) as budget:
...         time.sleep(0.02)
...         torch.nn.Identity()(torch.zeros(1))
... except BudgetSpent:
...     print("stopped")
stopped
"""

from __future__ import annotations

import time
from typing import Any, Self

from torch.nn.modules.module import register_module_forward_pre_hook

from rearview.errors import BadArgument


class BudgetSpent(BaseException):
    """The time budget is spent. It passes through every `except Exception`, in the auditor and in the model."""


class TimeBudget:
    """While it is entered, every call of a module looks at the clock. None means no limit."""

    def __init__(self, seconds: float | None):
        if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or seconds <= 0):
            raise BadArgument("budget", expected="a number of seconds above 0, or None", got=repr(seconds))
        self.seconds = seconds
        self.deadline = float("inf") if seconds is None else time.perf_counter() + seconds
        self._hook: Any = None

    def __enter__(self) -> Self:
        if self.seconds is not None:
            self._hook = register_module_forward_pre_hook(lambda module, args: self.check())
        return self

    def __exit__(self, *error: object) -> None:
        if self._hook is not None:
            self._hook.remove()

    @property
    def is_spent(self) -> bool:
        return time.perf_counter() > self.deadline

    @property
    def why(self) -> str:
        return "" if self.seconds is None else f"the time budget of {self.seconds:g} s was spent"

    def check(self) -> None:
        """Raise BudgetSpent where the time is over."""
        if self.is_spent:
            raise BudgetSpent(self.why)
