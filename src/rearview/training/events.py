"""What happens while a model trains, in the order in which it happens: the loop is an iterator of these.

>>> Validation(step=100, loss=1.5, bits_per_character=2.164)
Validation(step=100, loss=1.5, bits_per_character=2.164)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """Before the first step: the step that it goes on from, and what it is computed in."""

    step: int
    steps: int
    precision: str


@dataclass(frozen=True)
class Step:
    """A step was done. `loss`: in nats a token; `grad_norm`: before clipping. Reported several at a time."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float


@dataclass(frozen=True)
class Validation:
    """The loss on text that the model does not learn from, in nats a token and in bits a character."""

    step: int
    loss: float
    bits_per_character: float


@dataclass(frozen=True)
class Sample:
    """What the model writes by now."""

    step: int
    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint is on the disk, whole."""

    step: int
    path: Path


@dataclass(frozen=True)
class Stopped:
    """Asked to stop before the end; the last event."""

    step: int


@dataclass(frozen=True)
class Finished:
    """All steps are done; the last event."""

    step: int


Event = Started | Step | Validation | Sample | Saved | Stopped | Finished
