"""World: this process among those that train together, in a mesh of (data parallel, context parallel).

`torchrun` starts the processes and tells each its rank in environment variables; see `World.join`. A process that
trains alone has no world, and nothing here loads torch.distributed until a world is joined.

>>> is_one_of_several()
False
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.errors import BadArgument, RearviewError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# A collective that takes longer has lost a process without notice, such as a machine that was switched off.
TIMEOUT = timedelta(minutes=10)
# The file through which the processes of one machine find each other, and the process that started them.
STORE, LAUNCHER = "REARVIEW_STORE", "REARVIEW_LAUNCHER"


class RankFailed(RearviewError):
    """This process stops because of another one, or names itself as the one that failed."""


class World:
    """This process and the others; `join` makes one.

    Args:
        rank, size: the number of this process, from 0, and of all processes.
        device: the device of this process.
    """

    def __init__(self, rank: int, size: int, device: torch.device):
        self.rank, self.size, self.device = rank, size, device
        self.data_parallel, self.context_parallel = size, 1
        self._mesh: DeviceMesh | None = None

    @classmethod
    def join(cls, *, device: str = "auto") -> World:
        """Join the processes that torchrun has started; call `leave` at the end."""
        import torch.distributed as dist

        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        own = _own_device(device)
        store = os.environ.get(STORE)
        if own.type == "cuda":
            torch.cuda.set_device(own)
        if store is not None:
            _await_others(store, rank, size)
        with failures_named(rank, "before the first step"):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if own.type == "cuda" else "gloo",
                rank=rank,
                world_size=size,
                timeout=TIMEOUT,
                init_method=None if store is None else f"file://{store}",
            )
        return cls(rank, size, own)

    def divide(self, context_parallel: int) -> None:
        """Arrange the processes in a mesh (data parallel, context parallel); neighbouring ranks share a sequence."""
        if self.size % context_parallel:
            raise BadArgument(
                "context_parallel",
                expected=f"a divisor of the {self.size} processes",
                got=context_parallel,
                advice="Each group of that many processes shares a sequence.",
            )
        self.data_parallel, self.context_parallel = self.size // context_parallel, context_parallel
        self._mesh = None

    @property
    def mesh(self) -> DeviceMesh:
        """The mesh with the dimensions "dp" and "cp"."""
        from torch.distributed.device_mesh import init_device_mesh

        if self._mesh is None:
            shape = (self.data_parallel, self.context_parallel)
            self._mesh = init_device_mesh(self.device.type, shape, mesh_dim_names=("dp", "cp"))
        return self._mesh

    @cached_property
    def ranks(self) -> DeviceMesh:
        """All processes as a mesh of one dimension: gradients are summed over it."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, (self.size,), mesh_dim_names=("ranks",))

    def leave(self) -> None:
        """End the process group, if this process still has one."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes what is written once and prints."""
        return self.rank == 0

    @property
    def replica(self) -> int:
        """Which part of the rows of a batch this process has."""
        return self.rank // self.context_parallel

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        import torch.distributed as dist

        dist.all_reduce(value)
        return value

    def agree(self, flag: bool) -> bool:
        """Whether `flag` is True in any process. It goes over the CPU, so a GPU is not waited for."""
        return bool(self.sum(torch.tensor([int(flag)])) > 0)

    def wait(self) -> None:
        """Wait until all processes are here."""
        self.agree(False)

    def gather(self, data: bytes) -> list[bytes]:
        """Data of equal length from each process, in the order of ranks."""
        import torch.distributed as dist

        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        dist.all_gather(found, own)
        return [bytes(each.tolist()) for each in found]

    def from_first(self, make: Callable[[], bytes]) -> bytes:
        """What `make` returns in rank 0, in every process."""
        import torch.distributed as dist

        data = make() if self.is_first else b""
        length = self.sum(torch.tensor([len(data)]))
        content = torch.zeros(int(length), dtype=torch.uint8)
        if self.is_first:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        dist.broadcast(content, src=0)
        return bytes(content.tolist())

    def check_same(self, what: str, *values: object) -> None:
        """Check that values have the same content in every process: another text on one machine would go unnoticed."""
        own = hashlib.sha256(b"\0".join(_content(value) for value in values)).digest()
        found = self.gather(own)
        if others := [rank for rank, digest in enumerate(found) if digest != found[0]]:
            raise RearviewError(f"Rank {others[0]} has another {what} than rank 0. All must have the same.")

    @contextmanager
    def together(self) -> Iterator[None]:
        """Within, each process does its part, without the others. An error in one of them stops all of them."""
        problem = None
        try:
            yield
        except RearviewError as error:
            problem = error
        failed = [rank for rank, flag in enumerate(self.gather(bytes([problem is not None]))) if flag[0]]
        if not failed:
            return
        # One message is enough: several processes often fail for one reason.
        if failed[0] != self.rank or problem is None:
            raise RankFailed("") from problem
        raise problem if self.is_first else RankFailed(f"rank {self.rank}: {problem}") from problem


def _content(value: object) -> bytes:
    save = getattr(value, "save", None)
    if save is None:
        return json.dumps(value, sort_keys=True).encode()
    with tempfile.TemporaryDirectory() as folder:
        save(folder)
        return b"".join(path.read_bytes() for path in sorted(Path(folder).iterdir()))


def is_one_of_several() -> bool:
    """Whether torchrun, or a launcher that sets the same variables, has started this process."""
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def launcher_is_gone() -> bool:
    """Whether the command that started this process has ended, so that its output is not read and nothing stops it."""
    started_by = os.environ.get(LAUNCHER)
    return started_by is not None and os.getppid() != int(started_by)


@contextmanager
def failures_named(rank: int, doing: str) -> Iterator[None]:
    """Turn the errors of torch.distributed, which name sockets, into one that names the rank."""
    import torch.distributed as dist

    try:
        yield
    except (dist.DistError, RuntimeError) as error:
        if isinstance(error, RearviewError) or not _is_lost_connection(error):
            raise
        raise RankFailed(
            f"rank {rank} stops {doing}: another rank has ended or cannot be reached. The last checkpoint is intact."
        ) from error


def _is_lost_connection(error: RuntimeError) -> bool:
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    words = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out", "socket")
    return any(word in text for word in words)


def check_devices(name: str, processes: int) -> torch.device:
    """The kind of device that so many processes of this machine take; refused if one of them would have none."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(name)
    except RuntimeError as error:
        raise BadArgument("device", expected="auto, cpu or cuda", got=repr(name)) from error
    if kind.index is not None:
        advice = "Each process takes the GPU with its own number."
        raise BadArgument("device", expected="auto, cpu or cuda with several processes", got=repr(name), advice=advice)
    if kind.type == "cuda" and processes > (count := torch.cuda.device_count()):
        advice = "Start fewer processes, or give --device cpu."
        got = f"{count} for {processes} processes"
        raise BadArgument("device", expected="one GPU per process of a machine", got=got, advice=advice)
    return kind


def _own_device(name: str) -> torch.device:
    local = int(os.environ.get("LOCAL_RANK", "0"))
    kind = check_devices(name, int(os.environ.get("LOCAL_WORLD_SIZE", local + 1)))
    return torch.device("cuda", local) if kind.type == "cuda" else kind


def _await_others(store: str, rank: int, size: int) -> None:
    """Wait for the other processes of this machine, which may never come if the command that starts them is killed."""
    gone = f"rank {rank} stops before the first step: the command that started it has ended."
    try:
        Path(f"{store}.{rank}").touch()
    except FileNotFoundError:
        # It has removed the folder of the store.
        raise RankFailed(gone) from None
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while not all(Path(f"{store}.{other}").exists() for other in range(size)) and time.monotonic() < deadline:
        if launcher_is_gone():
            raise RankFailed(gone)
        time.sleep(0.05)
