"""The checkpoints of a run: which there are, which is newest, which is best, which may go.

>>> import tempfile
>>> from pathlib import Path
>>> with tempfile.TemporaryDirectory() as out:
...     for step in (200, 100):
...         Path(out, name_of(step)).mkdir()
...     [path.name for path in checkpoints(out)]
['step-000100', 'step-000200']
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from rearview.errors import BadArgument, BadFile
from rearview.training.checkpoint.record import Record

NAME = re.compile(r"step-(\d{6,})")
# What is being written, or being replaced: never read, and removed by the next run.
UNFINISHED = re.compile(r"\.step-\d{6,}\.\d+\.(part|old)")
KEPT = 2


def name_of(step: int) -> str:
    return f"step-{step:06}"


def step_of(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    assert found, f"{path} is not a checkpoint"
    return int(found[1])


def checkpoints(out: str | os.PathLike[str]) -> list[Path]:
    """The checkpoints of a run, the oldest first."""
    folder = Path(out)
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if NAME.fullmatch(path.name) and path.is_dir()), key=step_of)


def newest(out: str | os.PathLike[str]) -> Path:
    """The checkpoint with the most steps."""
    found = checkpoints(out)
    if not found:
        came = "which has none" if Path(out).is_dir() else "which is not there"
        raise BadArgument(
            "out", expected="a folder with checkpoints, as rearview train writes it", came=f"{out}, {came}"
        )
    return found[-1]


def best(out: str | os.PathLike[str]) -> Path:
    """The checkpoint with the lowest validation loss; the newest, where none was measured."""
    losses = {path: loss for path in checkpoints(out) if (loss := _validation(path)) is not None}
    return min(losses, key=lambda path: losses[path]) if losses else newest(out)


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder to load a model from: the newest checkpoint of a run, or the folder itself, if it holds a model."""
    folder = Path(path)
    return newest(folder) if checkpoints(folder) else folder


def prune(out: str | os.PathLike[str]) -> None:
    """Keep the newest two and the best."""
    found = checkpoints(out)
    for path in found:
        if path not in (*found[-KEPT:], best(out)):
            remove(path)


def clean(out: str | os.PathLike[str]) -> None:
    """Remove what a killed run left unfinished."""
    for path in Path(out).iterdir():
        if UNFINISHED.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a checkpoint; at no time is there half of one under its name."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.replace(path, aside)
    shutil.rmtree(aside, ignore_errors=True)


def _validation(path: Path) -> float | None:
    try:
        return Record.read(path).validation
    except BadFile:
        return None
