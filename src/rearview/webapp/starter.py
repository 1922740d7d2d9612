"""The model that the studio brings when none is given: a small GPT, trained once on the text that every Python carries.

It is a run of `rearview train` in the user's cache folder, and is trained again if it is missing or unfinished.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from rearview.errors import RearviewError
from rearview.training import Event, Run, RunConfig, checkpoints
from rearview.training.checkpoint.folders import step_of

CONFIG = RunConfig(
    context=128, layers=3, heads=4, width=96, positions="rotary", steps=500, batch=24, lr=3e-3, warmup=50,
    eval_every=250, save_every=125, sample_every=0,
)  # fmt: skip
# What the page starts with.
TEXT = "The mask says which positions a query may hear. A model that looks ahead has nothing left to predict."


def starter_folder() -> Path:
    """Where the starter is kept: XDG_CACHE_HOME, or ~/.cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "rearview" / "studio-1"


def is_ready(folder: Path) -> bool:
    """Whether the starter has been trained to its end."""
    found = checkpoints(folder)
    return bool(found) and step_of(found[-1]) == CONFIG.steps


def train_starter(folder: Path) -> Iterator[Event]:
    """Train the starter, or go on where it was interrupted; yields the events of the run."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        run = Run.resume(folder) if checkpoints(folder) else Run.start(CONFIG, folder)
    except OSError as error:
        why = error.strerror or str(error)
        raise RearviewError(f"The studio's own model cannot be kept in {folder}: {why}. Name a MODEL_DIR.") from error
    yield from run.train()
