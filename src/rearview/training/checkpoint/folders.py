"""The checkpoints of a run: which exist, which is the newest, which is the best, and which are removed.

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
from rearview.training.checkpoint.record import NAME as RECORD
from rearview.training.checkpoint.record import Record

NAME = re.compile(r"step-(\d{6,})")
# A checkpoint or a file that is being written or replaced: it is never read, and the next run removes it.
UNFINISHED = re.compile(r"\..+\.\d+\.(part|old)")
KEPT = 2
# What a model is loaded without.
ONLY_FOR_TRAINING = ("optimizer.safetensors", "state/")


def name_of(step: int) -> str:
    """The name of a checkpoint."""
    return f"step-{step:06}"


def step_of(path: Path) -> int:
    """The step of a checkpoint, from its name."""
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
        folder = Path(out)
        got = "which has none" if folder.is_dir() else "which is a file" if folder.exists() else "which does not exist"
        raise BadArgument("run", expected="a folder with checkpoints of rearview train", got=f"{out}, {got}")
    return found[-1]


def best(out: str | os.PathLike[str]) -> Path:
    """The checkpoint with the lowest validation loss; the newest, if none was validated."""
    losses = {path: loss for path in checkpoints(out) if (loss := _validation(path)) is not None}
    return min(losses, key=lambda path: losses[path]) if losses else newest(out)


def model_folder(path: str | os.PathLike[str]) -> Path:
    """The folder to load a model from: the newest checkpoint of a run, or the folder itself if it has none.

    The files of a checkpoint are compared with their checksums.
    """
    folder = Path(path)
    found = newest(folder) if checkpoints(folder) else folder
    if (found / RECORD).exists() and (damage := Record.read(found).damage(found, but=ONLY_FOR_TRAINING)):
        others = [other.name for other in checkpoints(found.parent) if other != found]
        advice = f" Other checkpoints of the run: {', '.join(others)}." if others else ""
        raise BadFile(damage.path, damage.why + advice)
    return found


def prune(out: str | os.PathLike[str]) -> None:
    """Remove all checkpoints but the newest two and the best."""
    found = checkpoints(out)
    for path in found:
        if path not in (*found[-KEPT:], best(out)):
            remove(path)


def clean(out: str | os.PathLike[str]) -> None:
    """Remove the unfinished checkpoints and files of a run that was killed."""
    for path in Path(out).iterdir():
        if not UNFINISHED.fullmatch(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove(path: Path) -> None:
    """Remove a checkpoint; at no time is there a part of one under its name."""
    renamed = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.replace(path, renamed)
    shutil.rmtree(renamed, ignore_errors=True)


def _validation(path: Path) -> float | None:
    try:
        return Record.read(path).validation
    except BadFile:
        return None
