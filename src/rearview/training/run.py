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

import torch

from rearview.errors import BadArgument, BadFile
from rearview.masks.frame import whole_number
from rearview.models import BERT, GPT, T5
from rearview.training.checkpoint.record import NAME, Record
from rearview.training.curve import draw_curve
from rearview.training.data import TextData, fingerprint_of
from rearview.training.events import Event
from rearview.training.loop import events_of
from rearview.training.metrics import read_metrics
from rearview.training.run_config import KEPT_TEXT, RunConfig
from rearview.training.run_folder import RunFolder
from rearview.training.tensorboard import to_tensorboard
from rearview.training.trainer import Trainer

CURVE = "loss.svg"


@dataclass(frozen=True)
class Run:
    """A run that is ready to train; `start` and `resume` make one. Nothing is written before `train` is read."""

    config: RunConfig
    model: GPT | BERT | T5
    data: TextData
    folder: RunFolder

    @classmethod
    def start(cls, config: RunConfig, out: str | os.PathLike[str]) -> Run:
        """A new run in a folder that has none.

        Everything is checked here: the settings, the text, the folder.
        """
        folder = RunFolder.start(out)
        documents = config.documents()
        config = _prepared(config)
        data = config.new_data(documents, kind=config.model, context=config.context)
        if config.is_piped:
            # The standard input cannot be read again when the run is resumed.
            folder.files[KEPT_TEXT] = config.copy_of(documents)
        return cls(config, config.new_model(data.tokenizer).to(_device(config.device)), data, folder)

    @classmethod
    def resume(cls, path: str | os.PathLike[str], **changes: object) -> Run:
        """The run in a folder, from its newest checkpoint; or from one of its checkpoints.

        Args:
            changes: settings that differ from now on. Most settings of a run cannot change; `steps`, the intervals, the
                device and the place of the text can.
        """
        folder = RunFolder.resume(path)
        checkpoint = folder.checkpoint
        assert checkpoint is not None
        before = _config_of(checkpoint.record, checkpoint.path)
        if unknown := sorted(changes.keys() - {each.name for each in fields(RunConfig)}):
            raise BadArgument("changes", expected="settings of RunConfig", got=unknown[0])
        config = _prepared(replace(before, **changes))  # pyright: ignore[reportArgumentType]  # checked when made
        config.check_continues(before, folder.path)
        if config.steps < folder.step:
            expected = f"at least {folder.step}, the number of steps that {checkpoint.path} has done"
            raise BadArgument("steps", expected=expected, got=config.steps)
        kept = folder.path / KEPT_TEXT if config.is_piped and "text" not in changes else None
        documents = config.documents(kept)
        checkpoint.check_text(fingerprint_of([document.text for document in documents]))
        data = config.data(documents, checkpoint.tokenizer, context=config.context)
        return cls(config, checkpoint.new_model().to(_device(config.device)), data, folder)

    def train(self, *, stop: Callable[[], bool] = lambda: False) -> Generator[Event, None, None]:
        """Train, and yield what happens; see `rearview.training.train`."""
        events = events_of(Trainer(self.model, self.data, self.config), self.folder, stop)
        return to_tensorboard(events, self.folder.path / "tensorboard") if self.config.tensorboard else events

    def save_curve(self) -> Path:
        """Draw the losses so far into the folder; needs matplotlib."""
        path = self.folder.path / CURVE
        draw_curve(read_metrics(self.folder.path), path, title=self.folder.path.name)
        return path


def set_threads(threads: int | None) -> int:
    """Let torch use this many threads, if a number is given; the number that it uses."""
    if threads is not None:
        torch.set_num_threads(whole_number(threads, "threads", at_least=1))
    return torch.get_num_threads()


def _prepared(config: RunConfig) -> RunConfig:
    # Another number of threads adds in another order, so a run that is resumed uses as many.
    return replace(config.with_absolute_path(), threads=set_threads(config.threads))


def _config_of(record: Record, path: Path) -> RunConfig:
    if missing := [each.name for each in fields(RunConfig) if each.name not in record.config]:
        why = f"has no setting {missing[0]!r}: the run was not started by rearview train or Run.start."
        raise BadFile(path / NAME, f"{why} Resume it with train(model, data, config, resume=...).")
    return RunConfig.from_json(record.config)


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BadArgument("device", expected="a device that torch can use here", got=repr(name)) from error
    return device
