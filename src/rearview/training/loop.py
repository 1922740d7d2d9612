"""train(): the training loop, as an iterator of events.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> from rearview.training import TextData, TrainConfig, TrainingStep, train
>>> data = TextData.of(["to be or not to be, " * 50], ByteTokenizer())
>>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=16))
>>> config = TrainConfig(steps=20, batch=8, lr=1e-2, warmup=2, sample_every=0)
>>> losses = [event.loss for event in train(model, data, config) if isinstance(event, TrainingStep)]
>>> len(losses), losses[-1] < losses[0] - 1
(20, True)
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument, RearviewError
from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.events import Event, Finished, Started, Stopped, TrainingStep
from rearview.training.objectives import Objective
from rearview.training.run_folder import RunFolder
from rearview.training.trainer import Trainer


class Diverged(RearviewError):
    """The loss is no longer a finite number."""


def train(
    model: nn.Module,
    data: TextData,
    config: TrainConfig,
    *,
    objective: Objective | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[Event, None, None]:
    """Train a model in place, and yield what happens.

    Nothing runs until the generator is read, and closing it ends the run as it is. The seed of torch's global generator
    is set at every step.

    Args:
        model: a GPT, BERT or T5; with an `objective`, any module that it can compute a loss of.
        objective: the loss; by default that of the model's kind.
        out: the folder of a new run, for checkpoints and metrics.jsonl. By default nothing is written.
        resume: instead of `out`, the folder of a run to resume from its newest checkpoint, or one of its checkpoints.
            The model, the optimizer and the position in the data are restored, and every number that follows is the
            same as in a run that was not interrupted.
        stop: called after every step; when it returns True, the run is saved and ends with `Stopped`.
    """
    if out is not None and resume is not None:
        raise BadArgument("out, resume", expected="one of them: a new run, or one to resume", got="both")
    trainer = Trainer(model, data, config, objective=objective)
    folder = None
    if out is not None:
        folder = RunFolder.start(out)
    elif resume is not None:
        folder = RunFolder.resume(resume)
        assert folder.checkpoint is not None
        config.check_continues(TrainConfig.from_json(folder.checkpoint.record.config), folder.path)
        folder.checkpoint.check_text(data.fingerprint)
        folder.checkpoint.copy_into(model)
    yield from events_of(trainer, folder, stop)


def events_of(trainer: Trainer, folder: RunFolder | None, stop: Callable[[], bool]) -> Generator[Event, None, None]:
    """Train a model whose weights are in place; each event is written to the folder before it is yielded."""
    if folder is None:
        yield from _events(trainer, None, stop)
        return
    if folder.checkpoint is not None:
        # In one process the weights are in place; of several processes each reads its part of them.
        weights = None if trainer.world is None else dict(trainer.model.named_parameters())
        with nullcontext() if trainer.world is None else trainer.world.together():
            folder.checkpoint.restore(trainer.optimizer, weights)
    with folder.refusals_named(), folder:
        for event in _events(trainer, folder, stop):
            folder.write(event)
            yield event


def _events(trainer: Trainer, folder: RunFolder | None, stop: Callable[[], bool]) -> Iterator[Event]:
    config, start = trainer.config, 0 if folder is None else folder.step
    yield Started(start, config.steps, str(trainer.dtype).removeprefix("torch."))
    if folder is not None and start == 0:
        # A folder that cannot be written to is reported now, and a run that is killed early can be resumed.
        yield folder.save(trainer, 0, None)
    intervals = (config.eval_every, config.sample_every, config.save_every)
    unread = _UnreadSteps(trainer)
    for step in range(start + 1, config.steps + 1):
        unread.add(step, *trainer.step(step))
        stopping = stop() if trainer.world is None else trainer.world.agree(stop())
        validating, sampling, saving = (_is_due(step, interval, config.steps) for interval in intervals)
        if not (stopping or validating or sampling or saving or step % config.log_every == 0):
            continue
        yield from unread.events()
        validation = trainer.validate(step) if validating else None
        if validation is not None:
            yield validation
        if sampling and config.sample_every:
            yield trainer.sample(step)
        if folder is not None and (stopping or saving):
            yield folder.save(trainer, step, validation)
        if stopping and step < config.steps:
            yield Stopped(step)
            return
        unread.restart_clock()
    yield Finished(config.steps)


def _is_due(step: int, interval: int, steps: int) -> bool:
    return step == steps or (interval > 0 and step % interval == 0)


class _UnreadSteps:
    """Steps whose losses are still on the device. On a GPU, reading one waits for all work before it, so they are read
    together."""

    def __init__(self, trainer: Trainer):
        self._trainer = trainer
        self._steps: list[tuple[int, Tensor, Tensor]] = []
        self.restart_clock()

    def restart_clock(self) -> None:
        """Measure the speed from here on: validation and saving do not count."""
        self._since = time.perf_counter()

    def add(self, step: int, loss: Tensor, norm: Tensor) -> None:
        self._steps.append((step, loss, norm))

    def events(self) -> Iterator[TrainingStep]:
        if not self._steps:
            return
        numbers = torch.stack([torch.stack([loss.float(), norm.float()]) for _, loss, norm in self._steps]).tolist()
        trainer = self._trainer
        tokens = len(self._steps) * trainer.config.rows * trainer.context
        speed = tokens / max(time.perf_counter() - self._since, 1e-9)
        for (step, _, _), (loss, norm) in zip(self._steps, numbers, strict=True):
            if not math.isfinite(loss) or not math.isfinite(norm):
                raise Diverged(
                    f"The loss is not finite at step {step} (loss {loss}, gradient norm {norm}). Lower the learning "
                    "rate (--lr), warm up for more steps (--warmup), or clip the gradients (--clip 1)."
                )
            yield TrainingStep(step, loss, trainer.lr(step), norm, speed)
        self._steps.clear()
