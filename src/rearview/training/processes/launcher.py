"""Start several processes on this machine with torchrun's own launcher, and report how they ended.

The processes find each other through a file and talk over the loopback interface: nothing listens beyond it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.training.processes.world import LAUNCHER, STORE, RankFailed

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

# After a signal, or after one process has ended, the others have this many seconds before they are killed.
GRACE = 60
# Processes that end within this time of the first were not killed by the launcher, which waits longer.
AT_ONCE = 5
# The exit code of a Python process that an uncaught error has ended.
TRACEBACK = 1


def launch(module: str, arguments: Sequence[str], *, processes: int, threads: int | None = None) -> int:
    """Run `python -m module arguments` in several processes; the exit code, 0 if all of them succeeded.

    Args:
        threads: the number of threads of each process; by default the cores are divided.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    whole_number(processes, "processes", at_least=1)
    if "RANK" in os.environ:
        raise BadArgument("processes", expected="none: torchrun has started the processes already", got=processes)
    with tempfile.TemporaryDirectory(prefix="rearview-") as folder:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(os.getpid()),
            rdzv_backend="c10d",
            rdzv_endpoint=str(Path(folder, "rendezvous")),
            rdzv_configs={"store_type": "file"},
            local_addr="127.0.0.1",
            max_restarts=0,
            shutdown_timeout=GRACE,
        )
        with _environment(Path(folder), processes, threads):
            try:
                elastic_launch(config, sys.executable)("-m", module, *arguments)
            except ChildFailedError as error:
                rank, failure = _cause(error.failures)
                if failure.exitcode < 0:
                    name = signal.Signals(-failure.exitcode).name
                    raise RankFailed(
                        f"rank {rank} (process {failure.pid}) was ended by {name}, so the others were stopped."
                    ) from error
                if failure.exitcode == TRACEBACK:
                    which = f"rank {rank} (process {failure.pid})"
                    raise RankFailed(f"{which} ended with the traceback above, so the others were stopped.") from error
                # The process has said why.
                return failure.exitcode
            except SignalException as stopped:
                return 128 + int(stopped.sigval)
    return 0


def _cause(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The rank that failed by itself. Others have lost it and say so, or were stopped by the launcher after it."""
    first = min(failure.timestamp for failure in failures.values())

    def order(failed: tuple[int, ProcessFailure]) -> tuple[bool, bool, bool, int]:
        rank, failure = failed
        is_stopped = failure.exitcode == -signal.SIGTERM or failure.timestamp > first + AT_ONCE
        return is_stopped, failure.exitcode > 0, failure.exitcode != TRACEBACK, rank

    return min(failures.items(), key=order)


@contextmanager
def _environment(folder: Path, processes: int, threads: int | None) -> Iterator[None]:
    """Within, the processes inherit these variables, and the launcher does not log what its errors say."""
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    each = threads or max(1, (os.cpu_count() or 1) // processes)
    chosen = {"OMP_NUM_THREADS": str(each), "GLOO_SOCKET_IFNAME": loopback, "NCCL_SOCKET_IFNAME": loopback}
    before, disabled = dict(os.environ), logging.root.manager.disable
    os.environ |= {name: value for name, value in chosen.items() if name not in before}
    os.environ |= {STORE: str(folder / "store"), LAUNCHER: str(os.getpid())}
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(disabled)
        os.environ.clear()
        os.environ |= before
