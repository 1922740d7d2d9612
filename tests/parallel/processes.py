"""Four gloo processes that stay for the whole test session: starting them takes longer than most tests.

A test names a function of its module. Every process of a group calls it with its place in the group, and the results
come back in the order of ranks.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

MOST_RANKS = 4
# A process that waits for one that failed gives up after this time.
PATIENCE = timedelta(seconds=60)


class Processes:
    """`run(function, size, *arguments)` calls `function(group, *arguments)` in the first `size` processes."""

    def __init__(self, folder: Path, serve: Callable[[int, str, Connection], None] | None = None):
        context = multiprocessing.get_context("forkserver")
        # Imported once, by the server that the processes are forked from.
        context.set_forkserver_preload(["tests.parallel.processes", "rearview.parallel", "rearview.models"])
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(MOST_RANKS):
            here, there = context.Pipe()
            process = context.Process(target=serve or _serve, args=(rank, str(folder / "store"), there), daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
        for pipe in self.pipes[:size]:
            pipe.send((function, size, arguments))
        answers = [pipe.recv() for pipe in self.pipes[:size]]
        for rank, (_, failure) in enumerate(answers):
            assert failure is None, f"rank {rank} of {size}: {failure}"
        return [result for result, _ in answers]

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            if process.is_alive():
                process.kill()


def _serve(rank: int, store: str, pipe: Connection) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MOST_RANKS, timeout=PATIENCE)
    groups: dict[int, ProcessGroup] = {}
    for size in range(1, MOST_RANKS + 1):
        group = dist.new_group(list(range(size)), timeout=PATIENCE)
        if rank < size:
            assert isinstance(group, ProcessGroup)
            groups[size] = group
    while True:
        try:
            function, size, arguments = pipe.recv()
        except EOFError:
            break
        try:
            torch.manual_seed(0)
            pipe.send((function(groups[size], *arguments), None))
        except Exception:
            pipe.send((None, traceback.format_exc()))


def gradient_difference(group: ProcessGroup, model: torch.nn.Module, expected: dict[str, torch.Tensor]) -> float:
    """The largest difference between the gradients of a model, summed over the ranks of a group, and `expected`."""
    worst = 0.0
    for name, parameter in model.named_parameters():
        if name in expected:
            total = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(total, group=group)
            worst = max(worst, float((total - expected[name]).abs().max()))
    return worst
