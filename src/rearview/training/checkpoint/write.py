"""Write a checkpoint: into a folder beside, to the disk, then into place in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from rearview.errors import RearviewError
from rearview.models.checkpoint import save as save_model
from rearview.text import Tokenizer
from rearview.training.checkpoint import record as training_record
from rearview.training.checkpoint.folders import checkpoints, name_of, remove, step_of
from rearview.training.checkpoint.record import Record, checksum_of

OPTIMIZER = "optimizer.safetensors"


class NotSaved(RearviewError):
    """A checkpoint that could not be written; the message says which is still there."""

    def __init__(self, out: Path, step: int, why: str):
        kept = [path for path in checkpoints(out) if step_of(path) < step]
        text = f"The checkpoint of step {step} could not be written to {out}: {why}."
        if kept:
            text += f" The one before is untouched: {kept[-1]}. Make room, then: rearview train --resume {out}"
        else:
            text += " Nothing of it was left behind. Make room, or choose another folder with --out."
        super().__init__(text)


def write_checkpoint(
    out: Path, model: Any, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record
) -> Path:
    """`record` without its files; they are what is written."""
    unfinished = out / f".{name_of(record.step)}.{os.getpid()}.part"
    final = out / name_of(record.step)
    try:
        unfinished.mkdir(parents=True)
        _fill(unfinished, model, optimizer, tokenizer, record)
        if final.exists():
            remove(final)
        os.replace(unfinished, final)
        _sync(out)
    except (OSError, RearviewError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise NotSaved(out, record.step, cause.strerror or str(cause)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return final


def _fill(folder: Path, model: Any, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record) -> None:
    from safetensors.torch import save

    save_model(model, folder)
    tokenizer.save(folder)
    # An optimizer that has not moved has no state; safetensors writes an empty file for it.
    (folder / OPTIMIZER).write_bytes(save({name: value.cpu().contiguous() for name, value in optimizer.items()}))
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.iterdir()):
        _sync(path)
        files[path.name] = (path.stat().st_size, checksum_of(path))
    path = folder / training_record.NAME
    path.write_bytes(replace(record, files=files).to_bytes())
    _sync(path)
    _sync(folder)


def _sync(path: Path) -> None:
    """To the disk: a rename that survives a power cut must not be of files that do not."""
    # Windows opens no folders.
    if os.name == "nt" and path.is_dir():
        return
    handle = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
