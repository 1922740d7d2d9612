"""Write a checkpoint: into a temporary folder, to the disk, then into place in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from rearview.errors import RearviewError
from rearview.models.checkpoint import save as save_model
from rearview.text import Tokenizer
from rearview.training.checkpoint import record as training_record
from rearview.training.checkpoint.folders import checkpoints, name_of, remove, step_of
from rearview.training.checkpoint.record import Record, checksum_of
from rearview.training.sync import sync

OPTIMIZER = "optimizer.safetensors"


class NotSaved(RearviewError):
    """A checkpoint could not be written; the message names the one before it."""

    def __init__(self, out: Path, step: int, why: str):
        kept = [path for path in checkpoints(out) if step_of(path) < step]
        text = f"The checkpoint of step {step} could not be written to {out}: {why}."
        if kept:
            text += f" The checkpoint {kept[-1]} is intact. Free some space, then: rearview train --resume {out}"
        else:
            text += " No part of it was left. Free some space, or choose another folder with --out."
        super().__init__(text)


def write_checkpoint(
    out: Path, model: nn.Module, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record
) -> Path:
    """Write a checkpoint. `record` has no files yet; they are added as they are written."""
    unfinished = out / f".{name_of(record.step)}.{os.getpid()}.part"
    final = out / name_of(record.step)
    try:
        unfinished.mkdir()
        _fill(unfinished, model, optimizer, tokenizer, record)
        if final.exists():
            remove(final)
        os.replace(unfinished, final)
        sync(out)
    except (OSError, RearviewError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise NotSaved(out, record.step, cause.strerror or str(cause)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return final


def _fill(
    folder: Path, model: nn.Module, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record
) -> None:
    from safetensors.torch import save

    save_model(model, folder)  # pyright: ignore[reportArgumentType]  # it refuses what is not a GPT, BERT or T5
    tokenizer.save(folder)
    # Before the first step the optimizer has no state; safetensors writes an empty file for it.
    (folder / OPTIMIZER).write_bytes(save({name: value.cpu().contiguous() for name, value in optimizer.items()}))
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.iterdir()):
        # A rename that survives a power cut must not be of files that do not.
        sync(path)
        files[path.name] = (path.stat().st_size, checksum_of(path))
    path = folder / training_record.NAME
    path.write_bytes(replace(record, files=files).to_bytes())
    sync(path)
    sync(folder)
