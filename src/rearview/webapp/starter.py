"""The model of a studio that is given none: a small GPT, trained once on the reference text that comes with Python.

It is a run of `rearview train` in the user's cache folder. What is kept of it are models without the state of their
training, early ones as well, so that the studio can show how heads form. It is trained again if it is unfinished.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

from rearview.errors import RearviewError
from rearview.training import Event, Run, RunConfig, Saved, checkpoints
from rearview.training.checkpoint.folders import ONLY_FOR_TRAINING, newest, step_of

CONFIG = RunConfig(
    context=128, layers=3, heads=4, width=96, positions="rotary", steps=400, batch=24, lr=3e-3, warmup=40,
    eval_every=200, save_every=25, sample_every=0,
)  # fmt: skip
# The checkpoints that are kept: heads change most at the beginning.
KEPT = (25, 50, 75, 100, 150, 200, 300, 400)
# What the page starts with.
TEXT = "The mask says which positions a query may hear. A model that looks ahead has nothing left to predict."


def starter_folder() -> Path:
    """Where the starter is kept: XDG_CACHE_HOME, or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rearview" / "studio-2" / "starter"


def is_ready(folder: Path) -> bool:
    """Whether the starter has been trained to its end."""
    found = checkpoints(folder)
    return bool(found) and step_of(found[-1]) == CONFIG.steps


def train_starter(folder: Path) -> Generator[Event]:
    """Train the starter, or go on where it was interrupted; yields the events of the run."""
    training = folder.with_name("training")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        run = Run.resume(training) if checkpoints(training) else Run.start(CONFIG, training)
        for event in run.train():
            if not isinstance(event, Saved):
                yield event
            elif event.step in KEPT:
                _keep(event.path, folder)
        _keep(newest(training), folder)
        shutil.rmtree(training)
    except OSError as error:
        why = error.strerror or str(error)
        raise RearviewError(f"The studio's own model cannot be kept in {folder}: {why}. Name a MODEL_DIR.") from error


def _keep(checkpoint: Path, folder: Path) -> None:
    """Copy a checkpoint without what only training needs; there is never a part of one under its name."""
    target = folder / checkpoint.name
    if target.exists():
        return
    part = folder / f".{checkpoint.name}.{os.getpid()}.part"
    skipped = [name.rstrip("/") for name in ONLY_FOR_TRAINING]
    shutil.copytree(checkpoint, part, ignore=shutil.ignore_patterns(*skipped))
    part.rename(target)
