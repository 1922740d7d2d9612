"""The folder of a run: its checkpoints, its metrics, and the lock that one process holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rearview.errors import BadArgument, RearviewError
from rearview.training.checkpoint import (
    Checkpoint,
    NotSaved,
    Record,
    checkpoints,
    clean,
    newest,
    prune,
    read_checkpoint,
    shards,
    write_checkpoint,
)
from rearview.training.checkpoint.folders import remove, step_of
from rearview.training.checkpoint.together import write_together
from rearview.training.events import Event, Saved, Validation
from rearview.training.lock import FolderLock, check_unlocked
from rearview.training.metrics import Metrics
from rearview.training.processes.world import World
from rearview.training.sync import make_folder, write_synced
from rearview.training.trainer import Trainer


class RunFolder:
    """A folder for a new run (`start`), or that of a run to be resumed (`resume`). It is written to inside `with`.

    Args:
        checkpoint: what the run continues from; None for a new run.

    `files` are written when the folder is entered, before the first checkpoint.
    """

    def __init__(self, path: Path, found: list[Path], checkpoint: Checkpoint | None):
        self.path, self.checkpoint = path, checkpoint
        self.files: dict[str, bytes] = {}
        # The processes that train together: rank 0 writes what is written once.
        self.world: World | None = None
        self._found = found
        self._stack = ExitStack()
        self._metrics: Metrics | None = None

    @classmethod
    def start(cls, out: str | os.PathLike[str]) -> RunFolder:
        """A folder without a run; nothing is written yet."""
        path = Path(out)
        check_unlocked(path)
        if found := checkpoints(path):
            raise BadArgument(
                "out",
                expected="a folder without a run",
                got=f"{path}, which has {found[-1].name}",
                advice=f"Resume that run (rearview train --resume {path}), or choose another folder.",
            )
        return cls(path, found, None)

    @classmethod
    def resume(cls, path: str | os.PathLike[str]) -> RunFolder:
        """The folder of a run, or one of its checkpoints, which is read here."""
        given = Path(path)
        is_checkpoint = given in checkpoints(given.parent)
        folder = given.parent if is_checkpoint else given
        check_unlocked(folder)
        checkpoint = read_checkpoint(given if is_checkpoint else newest(folder))
        return cls(folder, checkpoints(folder), checkpoint)

    @property
    def step(self) -> int:
        """The step that the run continues from."""
        return 0 if self.checkpoint is None else self.checkpoint.record.step

    @contextmanager
    def refusals_named(self) -> Iterator[None]:
        """Within, what the system refuses becomes an error that says whether the run can be resumed."""
        try:
            yield
        except OSError as error:
            place = error.filename or self.path
            raise RearviewError(
                f"{place}: {error.strerror or error}. No checkpoint was damaged. When the disk works again, resume the "
                f"run (rearview train --resume {self.path}), or start it again if it has no checkpoint yet."
            ) from error

    def __enter__(self) -> RunFolder:
        if self.world is None:
            self._open()
            return self
        with self.world.together():
            if self.world.is_first:
                self._open()
        return self

    def _open(self) -> None:
        make_folder(self.path)
        with ExitStack() as stack:
            stack.enter_context(FolderLock(self.path))
            if checkpoints(self.path) != self._found:
                raise RearviewError(f"{self.path}: another process has written checkpoints here in the meantime.")
            clean(self.path)
            for name, data in self.files.items():
                write_synced(self.path / name, data)
            # The steps after the one that the run continues from are trained again.
            for other in self._found:
                if step_of(other) > self.step:
                    remove(other)
            self._metrics = stack.enter_context(Metrics(self.path, self.step))
            self._stack = stack.pop_all()

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def write(self, event: Event) -> None:
        """Append an event to the metrics."""
        if self._metrics is not None:
            self._metrics.write(event)

    def save(self, trainer: Trainer, step: int, validation: Validation | None) -> Saved:
        """Write a checkpoint, then remove those that are neither new nor the best."""
        record = Record(
            step=step,
            config=trainer.config.to_json(),
            fingerprint=trainer.data.fingerprint,
            validation=None if validation is None else validation.loss,
            files={},
        )
        if self.world is None:
            self._sync_metrics(step)
            state, tokenizer = trainer.optimizer.state(), trainer.data.tokenizer
            path = write_checkpoint(self.path, trainer.model, state, tokenizer, record)
            prune(self.path)
            return Saved(step, path)
        with self.world.together():
            self._sync_metrics(step)
        weights = {shards.WEIGHTS + name: value for name, value in trainer.model.named_parameters()}
        state = {**weights, **trainer.optimizer.state()}
        path = write_together(self.world, self.path, trainer.plain_model(), state, trainer.data.tokenizer, record)
        if self.world.is_first:
            prune(self.path)
        return Saved(step, path)

    def _sync_metrics(self, step: int) -> None:
        """Write the metrics of the steps that a checkpoint declares done, before it."""
        try:
            if self._metrics is not None:
                self._metrics.sync()
        except OSError as error:
            raise NotSaved(self.path, step, error.strerror or str(error)) from error
