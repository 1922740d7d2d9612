"""The part of a checkpoint that all processes write: the weights and the state of the optimizer, in shards.

torch.distributed.checkpoint (DCP) decides which process writes what, and reads any part of it back on any number of
processes. Its own file of metadata is pickled, so it is not used: the shards are safetensors, whose headers say where
each belongs (`HuggingFaceStorageWriter`). Nothing that is read from a file is unpickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from rearview.errors import BadFile, RearviewError

FOLDER = "state"
# The names of weights begin with this; the others are moments of the optimizer.
WEIGHTS = "model."


class ShardsNotWritten(RearviewError):
    """A process could not write its shard; `rank` and `why` say which, and the reason of the system."""

    def __init__(self, rank: int, why: str):
        self.rank, self.why = rank, why
        super().__init__(f"rank {rank}: {why}")


def write_shards(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Write a state that is spread over all processes; all of them must call this. A copy is written once."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=False)
    try:
        save(dict(state), storage_writer=writer, planner=planner)
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        raise ShardsNotWritten(rank, getattr(cause, "strerror", None) or str(cause)) from error


def shard_of(folder: Path, rank: int) -> Path | None:
    """The file that a process has written, if it had anything to write."""
    return next(iter(folder.glob(f"shard-{rank + 1:05}-*.safetensors")), None)


def read_shards(folder: Path, state: Mapping[str, Tensor]) -> None:
    """Fill the tensors of a state, whole or parts of a mesh, from shards of any number of processes."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = HuggingFaceStorageReader(str(folder))
    stored = reader.read_metadata().state_dict_metadata
    for name, value in state.items():
        if name not in stored:
            raise BadFile(folder, f"does not belong to this model: it has no {name}.")
        if (size := getattr(stored[name], "size", None)) != value.shape:
            raise BadFile(folder, f"does not belong to this model: {name} {list(size or ())}.")
    with torch.no_grad(), warnings.catch_warnings():
        # Each process reads for itself, so that nothing is sent; DCP warns about it.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        load(dict(state), storage_reader=reader, no_dist=True)


def whole_state(folder: Path) -> dict[str, Tensor]:
    """All tensors of the shards in a folder."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    sizes = {name: each for name, each in stored.items() if isinstance(each, TensorStorageMetadata)}
    state = {name: torch.empty(each.size, dtype=each.properties.dtype) for name, each in sizes.items()}
    read_shards(folder, state)
    return state
