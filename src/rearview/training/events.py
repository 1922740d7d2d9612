"""The events of training, which the loop yields in order.

>>> Validation(step=100, loss=1.5, bits_per_character=2.164)
Validation(step=100, loss=1.5, bits_per_character=2.164)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Started:
    """Training begins. `step` is the number of steps already done, `precision` the dtype of matrix products."""

    step: int
    steps: int
    precision: str


@dataclass(frozen=True)
class TrainingStep:
    """One optimizer step. `loss` is in nats per token, `grad_norm` is before clipping. Several are reported at once."""

    step: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float


@dataclass(frozen=True)
class Validation:
    """The loss on held-out text, in nats per token and in bits per character."""

    step: int
    loss: float
    bits_per_character: float


@dataclass(frozen=True)
class Sample:
    """Text that the model generates at this step."""

    step: int
    text: str


@dataclass(frozen=True)
class Saved:
    """A checkpoint has been written."""

    step: int
    path: Path


@dataclass(frozen=True)
class Stopped:
    """Training was stopped before the last step; no event follows."""

    step: int


@dataclass(frozen=True)
class Finished:
    """All steps are done; no event follows."""

    step: int


Event = Started | TrainingStep | Validation | Sample | Saved | Stopped | Finished
"""What `train` yields."""
