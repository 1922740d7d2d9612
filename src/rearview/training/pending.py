"""Steps whose numbers were not read yet: on a GPU, reading one waits for all before it, so they are read together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from rearview.errors import RearviewError
from rearview.training.events import Step
from rearview.training.trainer import Trainer


class Diverged(RearviewError):
    """The loss is no longer a number."""


class Pending:
    """Add steps, and have them all as events."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._steps: list[tuple[int, Tensor, Tensor]] = []
        self.resume()

    def resume(self) -> None:
        """The clock goes on: what was not training does not count."""
        self._since = time.perf_counter()

    def add(self, step: int, loss: Tensor, norm: Tensor) -> None:
        self._steps.append((step, loss, norm))

    def events(self) -> Iterator[Step]:
        if not self._steps:
            return
        numbers = torch.stack([torch.stack([loss.float(), norm.float()]) for _, loss, norm in self._steps]).tolist()
        trainer = self._trainer
        tokens = len(self._steps) * trainer.config.rows * trainer.context
        speed = tokens / max(time.perf_counter() - self._since, 1e-9)
        for (step, _, _), (loss, norm) in zip(self._steps, numbers, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise Diverged(
                    f"The loss is no longer a number at step {step} (loss {loss}, norm of gradients {norm}). Lower the "
                    "learning rate (--lr), warm up for longer (--warmup), or clip the gradients (--clip 1)."
                )
            yield Step(step, loss, trainer.lr(step), norm, speed)
        self._steps.clear()
