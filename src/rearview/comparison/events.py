"""The events of a comparison, which `comparing` yields in order.

>>> ExamProgress(side="with-mask", task="exam", done=3, total=64)
ExamProgress(side='with-mask', task='exam', done=3, total=64)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rearview.comparison.result import Comparison
from rearview.training.events import Event

SideName = Literal["with-mask", "without-mask"]


@dataclass(frozen=True)
class SideEvent:
    """An event of the training of one model."""

    side: SideName
    event: Event


@dataclass(frozen=True)
class ExamProgress:
    """The progress of the exam of one model, or of its generated text."""

    side: SideName
    task: Literal["exam", "text"]
    done: int
    total: int


@dataclass(frozen=True)
class ComparisonStopped:
    """The comparison was stopped before its end, and can be resumed; no event follows."""


@dataclass(frozen=True)
class ComparisonFinished:
    """The comparison is complete; no event follows."""

    comparison: Comparison


ComparisonEvent = SideEvent | ExamProgress | ComparisonStopped | ComparisonFinished
"""What `comparing` yields."""
