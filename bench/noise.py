"""The processor time that other programs used. Without it, a timing on a shared machine says little.

Linux reports it in /proc/stat; on other systems it is unknown.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

# A larger share disturbs a timing. Less than a few clock ticks cannot be measured.
LOUD = 0.10
FEWEST_SECONDS = 0.03
MOMENT_S = 0.2


class Neighbours:
    """The load of other programs since creation, or since the last `restart`."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._wall, self._own, self._all = time.monotonic(), _own_seconds(), _busy_seconds()

    def share(self) -> float | None:
        """The part of all processors' time that other programs used, 0 to 1."""
        now, wall = _busy_seconds(), time.monotonic() - self._wall
        if now is None or self._all is None or wall <= 0:
            return None
        return self._others(now) / (wall * (os.cpu_count() or 1))

    def are_loud(self) -> bool:
        """Whether they used enough to disturb a timing."""
        now, share = _busy_seconds(), self.share()
        if now is None or share is None:
            return False
        return share > LOUD and self._others(now) > FEWEST_SECONDS

    def await_quiet(self, deadline: float) -> None:
        """Wait until other programs are quiet for a moment, or until the deadline of `time.monotonic()`."""
        while time.monotonic() < deadline:
            self.restart()
            time.sleep(MOMENT_S)
            if not self.are_loud():
                return

    def _others(self, busy_now: float) -> float:
        return max(0.0, busy_now - (self._all or 0.0) - (_own_seconds() - self._own))


def _own_seconds() -> float:
    """Processor time of this process and of the processes that it has started, those included that still run."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system + _of_living_children()


def _of_living_children() -> float:
    ticks = 0
    for listed in Path("/proc/self/task").glob("*/children"):
        # A thread or a child may end in between.
        with suppress(OSError):
            for pid in listed.read_text().split():
                # After the name, which may contain anything: own and children's time, in the 12th to the 15th place.
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += sum(map(int, words[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _busy_seconds() -> float | None:
    """Processor time that all programs together used since the machine started."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        user, nice, system, _idle, _waiting, irq, softirq, steal = ticks
        return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
