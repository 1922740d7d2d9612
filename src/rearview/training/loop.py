"""The loop: an iterator of what happens.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> from rearview.training import Step, TextData, TrainConfig, train
>>> data = TextData.of(["to be or not to be, " * 50], ByteTokenizer())
>>> model = GPT(GPTConfig(vocab_size=257, context=16, layers=1, heads=2, width=16))
>>> config = TrainConfig(steps=20, batch=8, lr=1e-2, warmup=2, sample_every=0)
>>> losses = [event.loss for event in train(model, data, config) if isinstance(event, Step)]
>>> len(losses), losses[-1] < losses[0] - 1
(20, True)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.events import Event, Finished, Started, Stopped
from rearview.training.objectives import Objective
from rearview.training.pending import Pending
from rearview.training.run import Run
from rearview.training.trainer import Trainer


def train(
    model: Any,
    data: TextData,
    config: TrainConfig,
    *,
    objective: Objective | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: str | os.PathLike[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Event]:
    """Train a model in place; what happens is yielded as it happens.

    Nothing runs unless the iterator is asked. The seed of torch's own generator is set at every step.

    Args:
        model: a GPT, BERT or T5; with an `objective`, any module that this can be asked of.
        out: a folder for checkpoints and metrics.jsonl. None: nothing is written.
        resume: a checkpoint of a run in `out` to go on from, or `out` itself for the newest. The model, the optimizer
            and the place in the data are as they were; every number that follows is the same as if it had not stopped.
        stop: asked after every step; once it says True, the run is saved and ends with `Stopped`.
    """
    trainer = Trainer(model, data, config, objective=objective)
    run = None if out is None else Run.begin(Path(out), config, data, resume=resume)
    if run is not None and run.resumed is not None:
        run.resumed.into(model)
        trainer.optimizer.load(run.resumed.optimizer, run.resumed.path)
    with run or nullcontext():
        yield from _recorded(trainer, run, 0 if run is None else run.step, stop)


def _recorded(trainer: Trainer, run: Run | None, start: int, stop: Callable[[], bool]) -> Iterator[Event]:
    """The events of a run, each written down before it is shown."""
    for event in _events(trainer, run, start, stop):
        if run is not None:
            run.metrics.write(event)
        yield event


def _events(trainer: Trainer, run: Run | None, start: int, stop: Callable[[], bool]) -> Iterator[Event]:
    config = trainer.config
    yield Started(start, config.steps, str(trainer.dtype).removeprefix("torch."))
    if run is not None and start == 0:
        # A run that cannot be saved is better told now; and a run that is killed early has something to go on from.
        yield run.save(trainer, 0, None)
    everies = (config.eval_every, config.sample_every, config.save_every)
    pending = Pending(trainer)
    for step in range(start + 1, config.steps + 1):
        pending.add(step, *trainer.step(step))
        stopping = stop()
        validating, sampling, saving = (_is_due(step, every, config.steps) for every in everies)
        if not (stopping or validating or sampling or saving or step % config.log_every == 0):
            continue
        yield from pending.events()
        validation = trainer.validate(step) if validating else None
        if validation is not None:
            yield validation
        if sampling and config.sample_every:
            yield trainer.sample(step)
        if run is not None and (stopping or saving):
            yield run.save(trainer, step, validation)
        if stopping and step < config.steps:
            yield Stopped(step)
            return
        pending.resume()
    yield Finished(config.steps)


def _is_due(step: int, every: int, steps: int) -> bool:
    return step == steps or (every > 0 and step % every == 0)
