"""A training run from its settings to its checkpoints: started once, and resumed as often as needed.

>>> import tempfile
>>> from rearview.training import Finished, Run, RunConfig
>>> config = RunConfig(steps=3, context=16, layers=1, heads=2, width=16, batch=2, eval_tokens=64, sample_every=0)
>>> folder = tempfile.mkdtemp()
>>> *_, last = Run.start(config, folder).train()
>>> *_, last = Run.resume(folder, steps=5).train()
>>> last
Finished(step=5)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import get_type_hints

import torch

from rearview.codec import Reader
from rearview.errors import BadArgument, BadFile
from rearview.models import BERT, GPT, T5
from rearview.training.checkpoint.record import NAME, Record
from rearview.training.config import CHANGEABLE
from rearview.training.curve import draw_curve
from rearview.training.data import TextData, fingerprint_of
from rearview.training.events import Event
from rearview.training.loop import events_of
from rearview.training.metrics import read_metrics
from rearview.training.processes.world import World
from rearview.training.run_config import KEPT_TEXT, RunConfig
from rearview.training.run_folder import RunFolder
from rearview.training.sources import Document
from rearview.training.tensorboard import to_tensorboard
from rearview.training.text_files import TextFiles
from rearview.training.threads import events_on, threads_for
from rearview.training.token_file import Progress, silent
from rearview.training.trainer import Trainer

CURVE = "loss.svg"


@dataclass(frozen=True)
class Run:
    """A run that is ready to train; `start` and `resume` make one. Nothing is written before `train` is read."""

    config: RunConfig
    model: GPT | BERT | T5
    data: TextData
    folder: RunFolder
    world: World | None = None

    @classmethod
    def start(
        cls, config: RunConfig, out: str | os.PathLike[str], *, world: World | None = None, progress: Progress = silent
    ) -> Run:
        """A new run in a folder that has none.

        Everything is checked here: the settings, the text, the folder.

        Args:
            world: the processes that train together; every one of them starts the run.
            progress: told how far a large text has been read.
        """
        _check_shard(config.shard, world)
        folder = RunFolder.start(out)
        if config.is_piped and world is not None:
            advice = "Save it to a file first: the processes cannot all read the standard input."
            raise BadArgument("text", expected="files or folders with several processes", got='"-"', advice=advice)
        source = config.source()
        config = _prepared(config)
        data = config.new_data(source, kind=config.model, context=config.context, progress=progress)
        if config.is_piped:
            # The standard input cannot be read again when the run is resumed.
            folder.files[KEPT_TEXT] = config.copy_of(source)
        return cls(config, config.new_model(data.tokenizer).to(_placed(config, world)), data, folder, world)

    @classmethod
    def resume(
        cls,
        path: str | os.PathLike[str],
        *,
        world: World | None = None,
        progress: Progress = silent,
        **changes: object,
    ) -> Run:
        """The run in a folder, from its newest checkpoint; or from one of its checkpoints.

        Args:
            world: the processes that train together; as many as before, more or fewer.
            progress: told how far a large text has been read.
            changes: settings that differ from now on. Most settings of a run cannot change; `steps`, the intervals, the
                device and the place of the text can.
        """
        folder = RunFolder.resume(path)
        checkpoint = folder.checkpoint
        assert checkpoint is not None
        before = _config_of(checkpoint.record, checkpoint.path)
        _check_shard(changes.get("shard"), world)
        if unknown := sorted(changes.keys() - {each.name for each in fields(RunConfig)}):
            raise BadArgument("changes", expected="settings of RunConfig", got=unknown[0])
        if world is not None and "threads" not in changes and before.threads is not None:
            # The processes of a machine share its cores, and there may be more of them than before.
            changes["threads"] = min(before.threads, torch.get_num_threads())
        config = _prepared(replace(before, **changes))  # pyright: ignore[reportArgumentType]  # checked when made
        config.check_continues(before, folder.path)
        if config.steps < folder.step:
            expected = f"at least {folder.step}, the number of steps that {checkpoint.path} has done"
            raise BadArgument("steps", expected=expected, got=config.steps)
        kept = folder.path / KEPT_TEXT if config.is_piped and "text" not in changes else None
        source = _source(config, kept, is_moved="text" in changes)
        if not isinstance(source, TextFiles):
            # First: the tokenizer may not know the characters of another text.
            checkpoint.check_text(fingerprint_of([document.text for document in source]))
        data = config.data(source, checkpoint.tokenizer, context=config.context, progress=progress)
        checkpoint.check_text(data.fingerprint)
        return cls(config, checkpoint.new_model().to(_placed(config, world)), data, folder, world)

    def train(self, *, stop: Callable[[], bool] = lambda: False) -> Generator[Event, None, None]:
        """Train, and yield what happens; see `rearview.training.train`."""
        if self.world is not None:
            self.folder.world = self.world
            # Machines may have other numbers of cores, and the text in another place.
            others = ("threads", "text")
            settings = {name: value for name, value in self.config.to_json().items() if name not in others}
            self.world.check_same("text, tokenizer or settings", self.data.fingerprint, self.data.tokenizer, settings)
        events = events_of(Trainer(self.model, self.data, self.config, world=self.world), self.folder, stop)
        has_board = self.config.tensorboard and (self.world is None or self.world.is_first)
        if has_board:
            events = to_tensorboard(events, self.folder.path / "tensorboard")
        return events_on(self.config.threads, events)

    def save_curve(self) -> Path:
        """Draw the losses so far into the folder; needs matplotlib."""
        path = self.folder.path / CURVE
        draw_curve(read_metrics(self.folder.path), path, title=self.folder.path.name)
        return path


def _prepared(config: RunConfig) -> RunConfig:
    # Another number of threads adds in another order, so a run that is resumed uses as many.
    return replace(config.with_absolute_path(), threads=threads_for(config))


def _source(config: RunConfig, kept: Path | None, *, is_moved: bool) -> TextFiles | list[Document]:
    """The text of a run that is resumed."""
    try:
        return config.source(kept)
    except BadFile as error:
        if config.is_piped or is_moved:
            raise
        raise BadFile(error.path, f"{error.why} If the text was moved, say where it is now: --text.") from error


def _config_of(record: Record, path: Path) -> RunConfig:
    # A setting that may change has a default for runs that were started before it existed.
    needed = [each.name for each in fields(RunConfig) if not each.metadata.get(CHANGEABLE)]
    if missing := [name for name in needed if name not in record.config]:
        why = f"has no setting {missing[0]!r}: the run was not started by rearview train or Run.start."
        raise BadFile(path / NAME, f"{why} Resume it with train(model, data, config, resume=...).")
    reader, kinds = Reader(path / NAME), get_type_hints(RunConfig)
    # Numbers that are not finite are strings in a file.
    known = record.config.keys() & kinds.keys()
    values = {name: reader.read(kinds[name], record.config[name], f"config.{name}") for name in known}
    for name, value in values.items():
        if value != value:
            reader.refuse(f"config.{name}", "a number", "nan")
    return RunConfig.from_json({**record.config, **values})


def _check_shard(shard: object, world: World | None) -> None:
    # A run that was sharded may go on in one process, but to ask one process for shards is a mistake.
    if shard and world is None:
        advice = "Start several: rearview train --processes N, or torchrun."
        raise BadArgument("shard", expected="several processes to divide a model between", got="one", advice=advice)


def _placed(config: RunConfig, world: World | None) -> torch.device:
    """The device of the model; the processes of a world are arranged here."""
    if world is not None:
        world.divide(config.context_parallel)
        return world.device
    if config.context_parallel > 1:
        raise BadArgument(
            "context_parallel",
            expected="1 in one process",
            got=config.context_parallel,
            advice="Start several: rearview train --processes N, or torchrun.",
        )
    return _device(config.device)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadArgument("device", expected="a device that torch can use here", got=repr(name)) from error
    return device
