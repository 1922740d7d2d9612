"""What happens in a comparison, in the order in which it happens.

>>> Progress(side="with-mask", doing="exam", done=3, total=64)
Progress(side='with-mask', doing='exam', done=3, total=64)
"""

from __future__ import annotations

from dataclasses import dataclass

from rearview.training.comparison.result import Comparison
from rearview.training.events import Event


@dataclass(frozen=True)
class Trained:
    """Something happened while a model trained. `side`: "with-mask" or "without-mask"."""

    side: str
    event: Event


@dataclass(frozen=True)
class Progress:
    """`doing`: "exam" or "writing"."""

    side: str
    doing: str
    done: int
    total: int


@dataclass(frozen=True)
class Halted:
    """Asked to stop before the end; the last to happen. What is on the disk can be gone on with."""


@dataclass(frozen=True)
class Found:
    """The end."""

    comparison: Comparison


Happening = Trained | Progress | Halted | Found
