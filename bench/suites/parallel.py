"""Layouts over ranks: balance and the keys that travel, compared with what others do; and how long it takes.

The first table has counts, which are the same on every machine. A rival gathers all keys on every rank, as torch's
context parallelism does for FlexAttention; its placement is one of torch's, from torch's own code. The times of
processes that share two cores are a check that exchanges cost little, not a measure of speed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from bench.harness import Case, Report, Settings, Suite, Task
from bench.table import Table
from rearview import Mask, attend, causal, documents, shared_prefix, window
from rearview.parallel import Layout, shard

LENGTH, RANKS = 65_536, 8
BLOCK = 128
MILLION = 2**20
WALL_LENGTH, QUICK_WALL_LENGTH, WALL_ROUNDS = 4096, 512, 7
HEADS, DIM = 4, 64
OURS = "rearview"
GATHER = "all-gather"


def document_ids(length: int, *, mean: float, spread: float, longest: int, multiple: int = 1) -> Tensor:
    """Documents of log-normal lengths, `longest` at most, each a multiple of `multiple`."""
    random = torch.Generator().manual_seed(0)
    sizes = (torch.randn(length // 8, generator=random) * spread + mean).exp().long().clamp(16, longest)
    sizes = (sizes // multiple).clamp(min=1) * multiple
    return torch.arange(len(sizes)).repeat_interleave(sizes)[:length]


@cache
def masks() -> dict[str, Mask]:
    some = document_ids(LENGTH, mean=7.0, spread=1.1, longest=8192)
    even = document_ids(LENGTH, mean=7.0, spread=1.1, longest=8192, multiple=2 * RANKS)
    # A document of nearly half of the sequence must be heard by several ranks, wherever its parts are.
    long = torch.cat([torch.zeros(30_000, dtype=torch.long), 1 + some[: LENGTH - 30_000]])
    return {
        "causal": causal(),
        "window 4096": causal() & window(4096),
        f"{int(some.max()) + 1} documents, up to 8,192": causal() & documents(some),
        f"{int(even.max()) + 1} documents, multiples of {2 * RANKS}": causal() & documents(even),
        f"{int(long.max()) + 1} documents, one of 30,000": causal() & documents(long),
        "prompt 8,192 + 16 answers": shared_prefix(8192, [(LENGTH - 8192) // 16] * 16),
    }


@dataclass(frozen=True)
class Placed:
    """The area of the slowest rank over the mean, and the keys that a rank receives over the length; or why not."""

    mask: str
    placement: str
    balance: float | None = None
    received: float | None = None
    note: str = ""


def placed(name: str) -> list[Placed]:
    """Our layouts and those of others, for one mask."""
    mask = masks()[name]
    best = shard(mask, LENGTH, RANKS)
    # A layout that the best one was compared with, or the best one itself.
    head_tail = next(each for each in (best, *best.others) if each.how == "head-tail")
    gathered = (RANKS - 1) / RANKS
    rows = [
        Placed(name, f"{OURS} ({best.how})", best.balance, _received(best)),
        Placed(name, f"head-tail, {GATHER}", head_tail.balance, gathered),
    ]
    heard = mask.spans(LENGTH).keys_heard[0, 0].double()
    for rival, indices in RIVALS.items():
        if indices is _torch_documents and "documents" not in name:
            continue
        try:
            area = heard[indices(mask)].view(RANKS, -1).sum(1)
            rows.append(Placed(name, f"{rival}, {GATHER}", float(area.max() / area.mean()), gathered))
        except Exception as error:
            why = str(error).partition("\n")[0][:70] or type(error).__name__
            rows.append(Placed(name, f"{rival}, {GATHER}", note=f"refused: {why}"))
    return rows


def _received(layout: Layout) -> float:
    return sum(layout.keys_received) / layout.ranks / layout.length


def _torch_documents(mask: Mask) -> Tensor:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PerDocumentHeadTailLoadBalancer

    edges = mask.spans(LENGTH).starts[0, 0, :, 0]
    sizes = edges.unique_consecutive(return_counts=True)[1].tolist()
    return _PerDocumentHeadTailLoadBalancer([sizes], RANKS, "cpu")._generate_indices(restore=False)[0]


def _torch_time(mask: Mask) -> Tensor:
    from torch.distributed.tensor.experimental._context_parallel._load_balancer import _PTRRLoadBalancer

    from rearview.masks.exchange import to_block_mask

    return _PTRRLoadBalancer(to_block_mask(mask, LENGTH), RANKS)._generate_indices(restore=False)[0]


RIVALS: dict[str, Callable[[Mask], Tensor]] = {
    "torch, per document": _torch_documents,
    "torch, by processing time": _torch_time,
}


@dataclass(frozen=True)
class Planned:
    """A layout that was timed."""

    what: str
    seconds: float
    layout: Layout


def planned(what: str) -> Planned:
    mask, ranks = PLANS[what]()
    shard(mask, MILLION // 64, ranks)
    mask, ranks = PLANS[what]()
    start = time.perf_counter()
    layout = shard(mask, MILLION, ranks)
    return Planned(what, time.perf_counter() - start, layout)


def _many_documents() -> Mask:
    return causal() & documents(document_ids(MILLION, mean=4.1, spread=1.0, longest=8192))


PLANS: dict[str, Callable[[], tuple[Mask, int]]] = {
    "10,000 documents on 64 ranks": lambda: (_many_documents(), 64),
    "causal on 64 ranks": lambda: (causal(), 64),
    "10,000 documents on 1,024 ranks": lambda: (_many_documents(), 1024),
    "causal on 1,024 ranks": lambda: (causal(), 1024),
    "window 4096 on 1,024 ranks": lambda: (causal() & window(4096), 1024),
}


@dataclass(frozen=True)
class Wall:
    """Milliseconds of a forward and backward pass on some processes, and the largest error."""

    mask: str
    processes: int
    milliseconds: float
    error: float


def wall(name: str, processes: int, length: int) -> Wall:
    """Processes of one thread each, on a layout of their own; 1 is a plain `attend`."""
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.get_context("spawn")
        given = (processes, name, length, folder)
        started = [context.Process(target=_rank, args=(rank, *given)) for rank in range(processes)]
        for process in started:
            process.start()
        for process in started:
            process.join()
        if any(process.exitcode for process in started):
            raise RuntimeError("a process failed")
        found = json.loads((Path(folder) / "found.json").read_text())
    return Wall(name, processes, **found)


def wall_masks(length: int) -> dict[str, Mask]:
    ids = document_ids(length, mean=5.0, spread=1.0, longest=length // 8)
    return {"causal": causal(), "window": causal() & window(length // 16), "documents": causal() & documents(ids)}


def _rank(rank: int, processes: int, name: str, length: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    mask, random = wall_masks(length)[name], torch.Generator().manual_seed(0)
    whole = [torch.randn(1, HEADS, length, DIM, generator=random) for _ in range(3)]
    everyone = dist.group.WORLD
    assert everyone is not None
    layout = shard(mask, length, everyone)
    mine = [layout.split(x, dim=2).requires_grad_() for x in whole]

    def step() -> Tensor:
        with layout.on():
            out = attend(*mine, mask=mask)
            out.sum().backward()
        return out

    joined = layout.join(step().detach(), dim=2)
    times = []
    for _ in range(WALL_ROUNDS):
        dist.barrier()
        start = time.perf_counter()
        step()
        dist.barrier()
        times.append(1000 * (time.perf_counter() - start))
    if rank == 0:
        right = attend(*(x.double() for x in whole), mask=mask)
        error = float((joined - right).abs().max() / right.abs().max())
        found = {"milliseconds": statistics.median(times), "error": error}
        (Path(folder) / "found.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def placements_table(found: Sequence[Placed]) -> Table:
    rows = []
    for each in found:
        fewer = "" if each.received is None else f"{(RANKS - 1) / RANKS / each.received:.1f}x"
        numbers = ("-", "-") if each.balance is None else (f"{each.balance:.3f}", f"{each.received:.4f}")
        rows.append((each.mask, each.placement, *numbers, fewer, each.note))
    headers = ("mask", "placement", "slowest / mean", "received / length", "fewer than all-gather", "note")
    return Table(headers, rows, words_first=2, last_is_words=True)


def plans_table(found: Sequence[Planned]) -> Table:
    rows = [
        (
            each.what,
            each.layout.how,
            f"{each.seconds:.2f}",
            f"{each.layout.balance:.3f}",
            f"{_received(each.layout):.4f}",
        )
        for each in found
    ]
    return Table(
        ("1,048,576 positions", "placement", "seconds", "slowest / mean", "received / length"), rows, words_first=2
    )


def walls_table(found: Sequence[Wall]) -> Table:
    alone = {each.mask: each.milliseconds for each in found if each.processes == 1}
    rows = []
    for each in found:
        times = f"{alone[each.mask] / each.milliseconds:.2f}x" if each.mask in alone else "-"
        rows.append((each.mask, str(each.processes), f"{each.milliseconds:.1f}", times, f"{each.error:.1e}"))
    return Table(("forward and backward", "processes", "ms", "of one process", "error"), rows)


def verdicts_on(found: Sequence[Placed]) -> list[str]:
    """The goals: documents within 1.05 of the mean with 8 times fewer keys, a window with 15 times fewer."""
    told = []
    for each in found:
        if not each.placement.startswith(OURS) or each.balance is None or not each.received:
            continue
        fewer = (RANKS - 1) / RANKS / each.received
        if each.mask.startswith("window"):
            told.append(f"{_word(fewer >= 15)}: {each.mask}, {fewer:.1f} times fewer keys than all-gather, asked 15")
        elif "up to 8,192" in each.mask:
            good = each.balance <= 1.05 and fewer >= 8
            told.append(
                f"{_word(good)}: {each.mask}, balance {each.balance:.3f} with {fewer:.1f} times fewer keys than "
                "all-gather, asked 1.05 and 8"
            )
    return told


def _word(is_met: bool) -> str:
    return "met" if is_met else "NOT MET"


class ParallelSuite(Suite):
    name, title, suffix = "parallel", "Layouts over ranks", "-parallel"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        length = QUICK_WALL_LENGTH if args.quick else WALL_LENGTH
        tasks = [Task(name, lambda settings, name=name: placed(name)) for name in masks()]
        if not args.quick:
            tasks += [Task(what, lambda settings, what=what: planned(what)) for what in PLANS]

        def timed(settings: Settings, name: str, processes: int) -> Wall:
            settings.progress("processes are starting")
            return wall(name, processes, length)

        for name in wall_masks(length):
            for count in (1, 2) if args.quick else (1, 2, 4):
                title = f"{name}, {count} {'process' if count == 1 else 'processes'}"
                tasks.append(Task(title, lambda settings, n=name, c=count: timed(settings, n, c)))
        return list(tasks)

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        rows = [row for each in results if isinstance(each, list) for row in each]
        plans = [each for each in results if isinstance(each, Planned)]
        walls = [each for each in results if isinstance(each, Wall)]
        tables = []
        if rows:
            tables.append((f"{LENGTH:,} positions over {RANKS} ranks: counts", placements_table(rows)))
        if plans:
            tables.append(("Making a layout", plans_table(plans)))
        if walls:
            tables.append(
                ("Processes of one thread on this machine: a check, not a measure of speed", walls_table(walls))
            )
        about = [
            f"{HEADS} heads of {DIM} in float32 for the processes, which exchange through gloo",
            "torch's own ring attention and its FlexAttention path run on GPUs only, so their times are not here",
        ]
        wrong = any(each.error > 1e-4 for each in walls)
        return Report(about, tables, verdicts_on(rows), is_wrong=wrong)


SUITES = (ParallelSuite(),)
