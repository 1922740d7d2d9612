"""How much of the processors other programs took: what a timing on a shared machine must be told with.

Linux says it in /proc/stat; elsewhere nothing is known, and nothing is claimed.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

# Shares above this are noise that changes a timing; below a few ticks of the clock nothing can be told.
LOUD = 0.10
FEWEST_SECONDS = 0.03
MOMENT_S = 0.2


class Neighbours:
    """Counts from when it is made, or from the last `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._wall, self._own, self._all = time.monotonic(), _own_seconds(), _busy_seconds()

    def share(self) -> float | None:
        """The part of all processors' time that went to other programs, 0 to 1."""
        now, wall = _busy_seconds(), time.monotonic() - self._wall
        if now is None or self._all is None or wall <= 0:
            return None
        return self._others(now) / (wall * (os.cpu_count() or 1))

    def are_loud(self) -> bool:
        """Did they take enough to spoil what was timed meanwhile?"""
        now, share = _busy_seconds(), self.share()
        if now is None or share is None:
            return False
        return share > LOUD and self._others(now) > FEWEST_SECONDS

    def await_quiet(self, deadline: float) -> None:
        """Return when others let the processors rest for a moment, or when `time.monotonic()` is at the deadline."""
        while time.monotonic() < deadline:
            self.restart()
            time.sleep(MOMENT_S)
            if not self.are_loud():
                return

    def _others(self, busy_now: float) -> float:
        return max(0.0, busy_now - (self._all or 0.0) - (_own_seconds() - self._own))


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _busy_seconds() -> float | None:
    """Processor time that anybody used since the machine started."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
