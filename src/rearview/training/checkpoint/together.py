"""Write a checkpoint in several processes: each its shard, rank 0 what is written once; then one rename."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from rearview.errors import RearviewError
from rearview.text import Tokenizer
from rearview.training.checkpoint import shards
from rearview.training.checkpoint.folders import name_of
from rearview.training.checkpoint.record import Record, checksum_of
from rearview.training.checkpoint.writer import (
    NotSaved,
    put_in_place,
    refusals_named,
    unfinished_name,
    write_model,
    write_record,
)
from rearview.training.processes.world import World
from rearview.training.sync import sync

# The size of a shard in bytes and its SHA-256 checksum, as the processes exchange them.
SIZE, DIGEST = 8, 32


def write_together(
    world: World,
    out: Path,
    model: nn.Module | None,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    record: Record,
) -> Path:
    """Write a checkpoint; every process must call this. `model` is the whole model in rank 0, None in the others."""
    unfinished = out / world.from_first(lambda: unfinished_name(record.step).encode()).decode()
    try:
        _write(world, unfinished, model, state, tokenizer, record)
    finally:
        if world.is_first:
            shutil.rmtree(unfinished, ignore_errors=True)
    return out / name_of(record.step)


def _write(
    world: World,
    unfinished: Path,
    model: nn.Module | None,
    state: Mapping[str, Tensor],
    tokenizer: Tokenizer,
    record: Record,
) -> None:
    out, folder = unfinished.parent, unfinished / shards.FOLDER
    with world.together(), refusals_named(out, record.step):
        if world.is_first:
            # Without its parents: a run whose folder was removed must not go on without its lock and its metrics.
            unfinished.mkdir()
            folder.mkdir()
    with world.together():
        if not folder.is_dir():
            raise RearviewError(
                f"{folder} is not there, although rank 0 has made it. The folder of a run must be on a file system "
                "that all machines share."
            )
    with world.together():
        try:
            shards.write_shards(folder, state)
        except shards.ShardsNotWritten as error:
            raise NotSaved(out, record.step, str(error)) from error
    files = _files(world, folder, record.step)
    with world.together(), refusals_named(out, record.step):
        if model is not None:
            write_model(unfinished, model, tokenizer)
            sync(folder)
            write_record(unfinished, record, files)
            put_in_place(unfinished, out, record.step)


def _files(world: World, folder: Path, step: int) -> dict[str, tuple[int, str]]:
    """In rank 0, the size and checksum of every shard; each process reads the one that it wrote."""
    own = bytes(SIZE + DIGEST)
    with world.together(), refusals_named(folder.parent.parent, step):
        path = shards.shard_of(folder, world.rank)
        if path is not None:
            sync(path)
            own = path.stat().st_size.to_bytes(SIZE, "big") + bytes.fromhex(checksum_of(path))
    answers, found = world.gather(own), dict[str, tuple[int, str]]()
    if not world.is_first:
        # Rank 0 may have moved the folder already: another process must not look into it any more.
        return found
    for rank, data in enumerate(answers):
        if size := int.from_bytes(data[:SIZE], "big"):
            path = shards.shard_of(folder, rank)
            assert path is not None
            found[f"{shards.FOLDER}/{path.name}"] = (size, data[SIZE:].hex())
    return found
