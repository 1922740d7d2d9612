"""Processes that the program starts as a copy of itself: what they compute comes back without an op.

>>> from rearview.auditing.proof.processes import _before_fork, watching_forks
>>> with watching_forks(lambda: print("forks")):
...     _before_fork()    # as os.fork() does
forks
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# What to call before a fork. Handlers of a fork cannot be removed, so there is one for good.
_watching: list[Callable[[], None]] = []


def _before_fork() -> None:
    for report in _watching:
        report()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)


@contextmanager
def watching_forks(report: Callable[[], None]) -> Iterator[None]:
    """Call `report` whenever this process is about to fork."""
    _watching.append(report)
    try:
        yield
    finally:
        _watching.remove(report)
