"""How calls on a GPU are timed: interleaved, with the host's time hidden behind work that is queued before.

Used by the processes that the suite `gpu` starts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Call = Callable[[], object]

# Larger than the L2 of any GPU, so that no call finds what another has read.
FLUSHED_BYTES = 256 << 20
# Flushes before each call take about a millisecond, longer than the host takes to launch it.
FLUSHES = 16


def kernel_us(calls: Mapping[str, Call], *, rounds: int = 11) -> dict[str, float]:
    """Microseconds of each call on the GPU: the median over rounds in which the calls take turns."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    for call in calls.values():
        call()
        call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(FLUSHES):
                flushed.zero_()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            samples[name].append(1000 * start.elapsed_time(end))
    return {name: statistics.median(found) for name, found in samples.items()}


def graph_us(calls: Mapping[str, Call], *, rounds: int = 11, repeats: int = 4) -> dict[str, float]:
    """The same for short calls, each captured `repeats` times in a CUDA graph."""
    graphs = {}
    for name, call in calls.items():
        for _ in range(3):
            call()
        torch.cuda.synchronize()
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name]):
            for _ in range(repeats):
                call()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, graph in graphs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            samples[name].append(1000 * start.elapsed_time(end) / repeats)
    return {name: statistics.median(found) for name, found in samples.items()}


def host_us(calls: Mapping[str, Call], *, rounds: int = 9, repeats: int = 200) -> dict[str, float]:
    """Microseconds of the host per call of a row of calls that the GPU is not waited for."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(rounds):
        for name, call in calls.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            samples[name].append(1e6 * (time.perf_counter() - start) / repeats)
    torch.cuda.synchronize()
    return {name: statistics.median(found) for name, found in samples.items()}


def difference(found: Tensor, wanted: Tensor) -> float:
    """The norm of the difference over the norm of what is wanted; NaN stays NaN."""
    found, wanted = found.double(), wanted.double()
    return float((found - wanted).norm() / wanted.norm())
