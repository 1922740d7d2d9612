"""A run in a folder: begun once, or gone on with; its checkpoints and its metrics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from rearview.errors import BadArgument
from rearview.training.checkpoint import (
    NotSaved,
    Record,
    Resumed,
    checkpoints,
    clean,
    newest,
    prune,
    read_checkpoint,
    write_checkpoint,
)
from rearview.training.checkpoint.folders import remove, step_of
from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.events import Saved, Validation
from rearview.training.metrics import Metrics


class Run:
    """To be used in a `with` statement; `begin` makes one."""

    def __init__(self, out: Path, config: TrainConfig, data: TextData, resumed: Resumed | None):
        self.out, self.config, self.data, self.resumed = out, config, data, resumed

    @classmethod
    def begin(cls, out: Path, config: TrainConfig, data: TextData, *, resume: str | os.PathLike[str] | None) -> Run:
        """A new run, or one that goes on; nothing is written yet. A folder that holds a run is not written over."""
        if resume is None:
            if found := checkpoints(out):
                raise BadArgument(
                    "out",
                    expected="a folder without a run",
                    came=f"{out}, which has {found[-1].name}",
                    advice=f"Go on with it (rearview train --resume {out}), or choose another folder.",
                )
            return cls(out, config, data, None)
        # The folder of the run, or one of its checkpoints.
        path = Path(resume) if Path(resume).parent == out and Path(resume) in checkpoints(out) else newest(out)
        resumed = read_checkpoint(path)
        resumed.check_text(data.fingerprint)
        return cls(out, config, data, resumed)

    @property
    def step(self) -> int:
        """The step that it goes on from."""
        return 0 if self.resumed is None else self.resumed.record.step

    def __enter__(self) -> Run:
        # Only here is anything changed: everything that could be refused was looked at before.
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            came = f"{error.strerror} ({self.out})"
            raise BadArgument("out", expected="a folder that can be made", came=came) from error
        clean(self.out)
        # They are of the steps that are now done again.
        for other in checkpoints(self.out):
            if step_of(other) > self.step:
                remove(other)
        self.metrics = Metrics(self.out, self.step)
        return self

    def __exit__(self, *exception: object) -> None:
        self.metrics.__exit__()

    def save(self, trainer: Any, step: int, validation: Validation | None) -> Saved:
        """Write a checkpoint, then remove what is neither new nor best."""
        record = Record(
            step=step,
            config=self.config.to_json(),
            fingerprint=self.data.fingerprint,
            validation=None if validation is None else validation.loss,
            files={},
        )
        try:
            # First the lines of the steps that the checkpoint says are done.
            self.metrics.sync()
        except OSError as error:
            raise NotSaved(self.out, step, error.strerror or str(error)) from error
        path = write_checkpoint(self.out, trainer.model, trainer.optimizer.state(), self.data.tokenizer, record)
        prune(self.out)
        return Saved(step, path)
