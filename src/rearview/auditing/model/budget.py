"""A time budget that is kept: past it, the model that runs is stopped, and no other is started.

>>> import time, torch
>>> from rearview.auditing.model.budget import TimeBudget, BudgetSpent
>>> try:
...     with TimeBudget(0.01) as budget:
...         time.sleep(0.02)
...         torch.nn.Identity()(torch.zeros(1))
... except BudgetSpent:
...     print("stopped")
stopped

Every call of a module looks at the clock. In the main thread an alarm also stops a model that calls no module: one that
sleeps, waits or loops. It is raised in the code of the model only, where any exception may be, and never between two
steps of torch or of the auditor, which would leave them half done.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any, Self

from torch.nn.modules.module import register_module_forward_pre_hook

from rearview.auditing.user_code import is_inside_program
from rearview.errors import BadArgument

# Seconds until the alarm is tried again where the auditor or torch was running.
AGAIN = 0.02


class BudgetSpent(BaseException):
    """The time budget is spent. It passes through every `except Exception`, in the auditor and in the model."""


class TimeBudget:
    """While it is entered, a model that runs past the deadline is stopped. None means no limit."""

    def __init__(self, seconds: float | None):
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0
        ):
            raise BadArgument("budget", expected="a number of seconds above 0, or None", got=repr(seconds))
        self.seconds = seconds
        self.deadline = float("inf") if seconds is None else time.perf_counter() + seconds
        self._hook: Any = None
        self._has_alarm = False

    def __enter__(self) -> Self:
        if self.seconds is not None:
            self._hook = register_module_forward_pre_hook(lambda module, args: self.check())
            self._set_alarm()
        return self

    def __exit__(self, *error: object) -> None:
        if self._has_alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            self._has_alarm = False
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

    def _set_alarm(self) -> None:
        """Only the main thread gets signals; and an alarm that somebody else has set is left alone."""
        left = self.deadline - time.perf_counter()
        if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGALRM) is not signal.SIG_DFL or signal.getitimer(signal.ITIMER_REAL)[0]:
            return
        if left < threading.TIMEOUT_MAX:
            signal.signal(signal.SIGALRM, self._on_alarm)
            signal.setitimer(signal.ITIMER_REAL, max(left, AGAIN), AGAIN)
            self._has_alarm = True

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        if is_inside_program(frame):
            self.check()
