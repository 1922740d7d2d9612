"""Write a checkpoint: into a temporary folder, to the disk, then into place in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
        try:
            kept = [path for path in checkpoints(out) if step_of(path) < step]
        except OSError:
            # A disk that fails may not even list its files.
            super().__init__(f"The checkpoint of step {step} could not be written to {out}: {why}.")
            return
        text = f"The checkpoint of step {step} could not be written to {out}: {why}."
        if not out.is_dir():
            text += " The folder was removed while the run was training."
        elif kept:
            text += f" The checkpoint {kept[-1]} is intact. Free some space, then: rearview train --resume {out}"
        else:
            text += " No part of it was left. Free some space, or choose another folder with --out."
        super().__init__(text)


def write_checkpoint(
    out: Path, model: nn.Module, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record
) -> Path:
    """Write a checkpoint. `record` has no files yet; they are added as they are written."""
    unfinished = out / unfinished_name(record.step)
    try:
        with refusals_named(out, record.step):
            unfinished.mkdir()
            _fill(unfinished, model, optimizer, tokenizer, record)
            return put_in_place(unfinished, out, record.step)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def unfinished_name(step: int) -> str:
    """The name of the folder in which this process writes a checkpoint."""
    return f".{name_of(step)}.{os.getpid()}.part"


@contextmanager
def refusals_named(out: Path, step: int) -> Iterator[None]:
    """Within, what the system refuses becomes `NotSaved`."""
    try:
        yield
    except (OSError, RearviewError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise NotSaved(out, step, cause.strerror or str(cause)) from error


def put_in_place(unfinished: Path, out: Path, step: int) -> Path:
    """Give a complete folder the name of a checkpoint, in one step."""
    final = out / name_of(step)
    if final.exists():
        remove(final)
    os.replace(unfinished, final)
    sync(out)
    return final


def _fill(
    folder: Path, model: nn.Module, optimizer: Mapping[str, Tensor], tokenizer: Tokenizer, record: Record
) -> None:
    from safetensors.torch import save

    write_model(folder, model, tokenizer)
    # Before the first step the optimizer has no state; safetensors writes an empty file for it.
    (folder / OPTIMIZER).write_bytes(save({name: value.cpu().contiguous() for name, value in optimizer.items()}))
    write_record(folder, record, {})


def write_model(folder: Path, model: nn.Module, tokenizer: Tokenizer) -> None:
    """Write the files that `rearview generate` and transformers read."""
    save_model(model, folder)  # pyright: ignore[reportArgumentType]  # it refuses what is not a GPT, BERT or T5
    tokenizer.save(folder)


def write_record(folder: Path, record: Record, others: Mapping[str, tuple[int, str]]) -> None:
    """Write the record last, with the files of the folder and `others`, which are on the disk already."""
    files: dict[str, tuple[int, str]] = {}
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            continue
        # A rename that survives a power cut must not be of files that do not.
        sync(path)
        files[path.name] = (path.stat().st_size, checksum_of(path))
    path = folder / training_record.NAME
    path.write_bytes(replace(record, files={**files, **others}).to_bytes())
    sync(path)
    sync(folder)
