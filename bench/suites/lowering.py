"""The cost of converting a mask to ranges, or to the block lists of FlexAttention, beside the dense tensor.

The dense tensors are made as a user makes them, without the code that makes ranges: documents by comparing all pairs of
ids, trees by copying the row of each node's parent.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bench.harness import Case, Report, Settings, Suite, Task
from bench.process import in_own_process, peak, start_of_peak
from bench.table import Table, size
from rearview import Mask, causal, documents, prefix, tree, window

REPEATS = 5
# What a million positions may take as ranges.
ASKED_SECONDS = 1.0
QUICK_LENGTH = 2048
TOKENS_PER_DOCUMENT = 10
# Of the tree's nodes, one in this many branches off anywhere; the others follow the node before them.
NODES_PER_BRANCH = 100


@dataclass(frozen=True)
class Lowered:
    mask: str
    what: str
    length: int
    seconds: float
    # None if the system does not report it.
    peak_bytes: int | None


@dataclass(frozen=True)
class Contestant:
    mask: str
    what: str
    length: int
    lower: Callable[[int], object]


def tasks(length: int | None = None) -> list[Case | Task]:
    return [_task(name, length or contestant.length) for name, contestant in CONTESTANTS.items()]


def _task(name: str, length: int) -> Task:
    contestant = CONTESTANTS[name]

    def run(settings: Settings) -> Lowered:
        found = in_own_process(f"{__name__}:lowered", settings.progress, what=name, length=length)
        return Lowered(contestant.mask, contestant.what, length, **found)

    return Task(f"{contestant.mask}: {contestant.what}", run)


def lowered(what: str, length: int) -> dict[str, float | int | None]:
    """The median seconds of a few calls, and the growth of the process in the first call."""
    lower = CONTESTANTS[what].lower
    # Imports and other one-time costs are not those of the mask.
    lower(256)
    before = start_of_peak()
    seconds, highest = [], None
    for _ in range(REPEATS):
        start = time.perf_counter()
        lower(length)
        seconds.append(time.perf_counter() - start)
        highest = peak() if highest is None else highest
    grown = None if before is None or highest is None else max(0, highest - before)
    return {"seconds": statistics.median(seconds), "peak_bytes": grown}


def _mask() -> Mask:
    return (causal() & window(4096)) | prefix(4)


def _rule(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return ((k <= q) & (q - k < 4096)) | (k < 4)


def _ranges(length: int) -> object:
    return _mask().spans(length)


def _ours(length: int) -> object:
    from rearview.masks.exchange import to_block_mask

    return to_block_mask(_mask(), length)


def _torch(length: int) -> object:
    from torch.nn.attention.flex_attention import create_block_mask

    return create_block_mask(_rule, None, None, length, length, device="cpu")


def _ids(length: int) -> Tensor:
    return torch.arange(length) // TOKENS_PER_DOCUMENT


def _documents(length: int) -> Mask:
    return causal() & documents(_ids(length))


def _dense_documents(length: int) -> Tensor:
    ids = _ids(length)
    return (ids.unsqueeze(1) == ids).tril_()


def _parents(length: int) -> Tensor:
    """A prefix tree, depth first, with branches that start anywhere before."""
    node, generator = torch.arange(length), torch.Generator().manual_seed(0)
    anywhere = (torch.rand(length, generator=generator) * node).long()
    branches = (torch.rand(length, generator=generator) < 1 / NODES_PER_BRANCH) & (node > 0)
    return torch.where(branches, anywhere, node - 1)


def _dense_tree(length: int) -> Tensor:
    heard = torch.eye(length, dtype=torch.bool)
    for node, parent in enumerate(_parents(length).tolist()):
        if parent >= 0:
            heard[node, :node] = heard[parent, :node]
    return heard


WINDOW = "(causal() & window(4096)) | prefix(4)"
DOCUMENTS = f"causal() & documents of {TOKENS_PER_DOCUMENT}"
TREE = f"tree, 1 in {NODES_PER_BRANCH} branches"
RANGES = "rearview ranges"
MILLION, DENSE = 1_000_000, 16_384
CONTESTANTS = {
    "ranges": Contestant(WINDOW, RANGES, MILLION, _ranges),
    "ours": Contestant(WINDOW, "rearview BlockMask", DENSE, _ours),
    "torch": Contestant(WINDOW, "torch create_block_mask", DENSE, _torch),
    "documents": Contestant(DOCUMENTS, RANGES, MILLION, lambda n: _documents(n).spans(n)),
    "dense documents": Contestant(DOCUMENTS, "dense bool tensor", DENSE, _dense_documents),
    "tree": Contestant(TREE, RANGES, MILLION, lambda n: tree(_parents(n)).spans(n)),
    "dense tree": Contestant(TREE, "dense bool tensor", DENSE, _dense_tree),
}


def table_of(found: Sequence[Lowered]) -> Table:
    rows = [(each.mask, each.what, f"{each.length:,}", f"{each.seconds:.3f}", size(each.peak_bytes)) for each in found]
    return Table(("mask", "to", "positions", "seconds", "peak memory"), rows)


def verdicts_of(found: Sequence[Lowered]) -> list[str]:
    """Whether a million positions became ranges in the time that they may take."""
    return [
        f"{'met' if each.seconds < ASKED_SECONDS else 'NOT MET'}: {each.mask} to ranges, {each.length:,} positions: "
        f"{each.seconds:.3f} s, asked less than {ASKED_SECONDS:g} s"
        for each in found
        if (each.what, each.length) == (RANGES, MILLION)
    ]


class LoweringSuite(Suite):
    name, title, suffix = "lowering", "Making a mask", "-lowering"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        return tasks(QUICK_LENGTH if args.quick else None)

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        about = [f"median of {REPEATS} calls, each contestant in its own process; memory is what the first call added"]
        found = [each for each in results if isinstance(each, Lowered)]
        return Report(about, [("", table_of(found))], verdicts_of(found))


SUITES = (LoweringSuite(),)
