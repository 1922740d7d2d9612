"""What every experiment shares: a name, a promise, a time, and a tally of what was tried and what was lost.

>>> import random
>>> def count(tally, session):
...     while session.goes_on(tally):
...         tally.tried["numbers"] += 1
>>> experiment = Experiment("count", "Numbers do not end.", count)
>>> tally = experiment.run(Session(random.Random(0), most=3))
>>> tally.tried["numbers"], tally.failures
(3, [])
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

Progress = Callable[[str], None]
# Beyond these, failures are counted only.
KEPT = 50


@dataclass
class Tally:
    """What an experiment has done so far. It is filled while the experiment runs, so Ctrl-C loses nothing.

    Args:
        tried: how often each thing was tried; the first entry counts the trials.
        found: outcomes that are no failures, such as clean refusals.
        failures: one sentence each: a lost step, other bits, a traceback, a hang.
        missing: why it cannot run here, or "".
    """

    tried: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    failed: int = 0
    missing: str = ""
    seconds: float = 0.0

    @property
    def trials(self) -> int:
        return next(iter(self.tried.values()), 0)

    def fail(self, text: str) -> None:
        self.failed += 1
        if len(self.failures) < KEPT:
            self.failures.append(text)


@dataclass(frozen=True)
class Session:
    """When an experiment ends (after `most` trials, or at `deadline`), and where its random numbers come from."""

    draw: random.Random
    deadline: float = math.inf
    most: float = math.inf
    progress: Progress = lambda text: None

    def goes_on(self, tally: Tally) -> bool:
        """Asked before every trial."""
        self.progress(f"{tally.trials:,} done, {tally.failed} failed")
        return tally.trials < self.most and time.monotonic() < self.deadline


@dataclass(frozen=True)
class Experiment:
    """`try_until_end` tries until `session.goes_on` says no.

    Args:
        promise: what no trial may break.
        share: the part of the time that it gets, relative to the others.
        quick: the number of trials of a quick run.
        missing: why it cannot run on this machine, or "".
    """

    name: str
    promise: str
    try_until_end: Callable[[Tally, Session], None]
    share: float = 1.0
    quick: int = 4
    missing: Callable[[], str] = lambda: ""

    def run(self, session: Session, tally: Tally | None = None) -> Tally:
        tally = Tally() if tally is None else tally
        start = time.monotonic()
        tally.missing = self.missing()
        try:
            if not tally.missing:
                self.try_until_end(tally, session)
        finally:
            tally.seconds += time.monotonic() - start
        return tally

    def quickly(self, seed: int = 0) -> Tally:
        """A short run with the same trials every time, for the tests."""
        return self.run(Session(random.Random(f"{self.name} {seed}"), most=self.quick))


def until(session: Session, seconds: float) -> Session:
    """The same session, which ends after this many seconds."""
    return replace(session, deadline=min(session.deadline, time.monotonic() + seconds))
