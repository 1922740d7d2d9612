"""Statistics of attention: the time of one pass compared with a forward pass, and its memory as the length grows.

"Eager" is the usual alternative: the softmax of the full matrix, and the same figures computed from it. Memory is the
peak growth of the resident set during one call in a separate process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from bench.harness import (
    Call,
    Case,
    Contestant,
    Outcome,
    Ready,
    Report,
    Settings,
    Suite,
    Target,
    Task,
    any_wrong,
    outcomes_of,
)
from bench.process import free_bytes, in_own_process, peak, start_of_peak
from bench.table import Table, ms
from rearview import Mask, attend, causal, full, window
from rearview.attention import statistics

OURS, BARE, REFERENCE, FUSED, EAGER = (
    "rearview statistics",
    "rearview statistics, no map, no links",
    "forward, reference",
    "forward, fused (SDPA)",
    "eager statistics",
)
ROUNDS, QUICK_ROUNDS, LENGTH, QUICK_LENGTH = 9, 3, 2048, 512
# The number of heads in the table of lengths; few, so that long sequences finish.
LONG_HEADS, SHORTEST, LONGEST, QUICK_LONGEST = 4, 1024, 32768, 4096
MAP, LINKS, DIM = 64, 32, 64
# A call that would need more than this share of the free memory is not made.
SAFE_SHARE = 0.5
JUDGED_LENGTH = 300


@dataclass(frozen=True)
class Inputs:
    """Queries, keys and a mask, at any length."""

    name: str
    mask: Mask
    # The arguments of the fused kernel; None if it would need a dense mask.
    is_causal: bool | None
    key_heads: int = 8
    dtype: torch.dtype = torch.float32
    # Only the last queries of this number; all if None.
    queries: int | None = None
    # The target: the largest share of the fused forward pass. A step has none, since call overhead dominates it.
    at_most: float | None = 1.0

    def tensors(self, length: int, heads: int = 8) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = ((1, heads, self.queries or length, DIM), (1, min(heads, self.key_heads), length, DIM))
        query, key = (torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes)
        return query, key

    def targets(self) -> tuple[Target, ...]:
        found = [Target(OURS, REFERENCE, at_most=0.8)] if self.name == "causal" else []
        return (*found, *([Target(OURS, FUSED, at_most=self.at_most)] if self.at_most is not None else []))


INPUTS = (
    Inputs("causal", causal(), True, at_most=0.8),
    Inputs("causal, 2 key heads", causal(), True, key_heads=2),
    Inputs("causal, bfloat16", causal(), True, dtype=torch.bfloat16),
    Inputs("full", full(), False),
    Inputs("causal, window 256", causal() & window(256), None),
    Inputs("causal, one query", causal(), False, queries=1, at_most=None),
)


def eager(query: Tensor, key: Tensor, mask: Mask) -> dict[str, Tensor]:
    """The same figures from the full matrix, as one would write them in a notebook."""
    q_len, k_len = query.shape[2], key.shape[2]
    query, key = query.float(), key.float().repeat_interleave(query.shape[1] // key.shape[1], 1)
    visible = mask.to_bool(q_len, k_len)
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).masked_fill(~visible, -torch.inf)
    weights = scores.softmax(-1)
    positions = torch.arange(k_len - q_len, k_len)
    back = positions.unsqueeze(-1) - torch.arange(k_len)
    width = -(-k_len // MAP)
    rows, cols = (one_hot(each // width).float() for each in (positions, torch.arange(k_len)))
    edges = torch.tensor([0, *(2**n for n in range(max(1, k_len - 1).bit_length() + 1))])
    bins = torch.bucketize(back.flatten(), edges, right=True)
    top = weights.flatten(2).topk(LINKS)
    even = visible / visible.sum(-1, keepdim=True)
    return {
        "lse": scores.logsumexp(-1),
        "entropy": torch.special.entr(weights).sum(-1),
        "received": weights.sum(2),
        "expected": even.sum(0),
        "first": torch.stack([weights[..., :count].sum(-1) for count in (1, 4, 8)], -1),
        "distance": (weights * back).sum(-1),
        "histogram": weights.new_zeros(*weights.shape[:2], len(edges)).index_add(-1, bins, weights.flatten(2)),
        "map": rows.T @ weights @ cols,
        "expected_map": rows.T @ even @ cols,
        "links": top.values,
    }


def disagreement(inputs: Inputs, length: int = JUDGED_LENGTH) -> str:
    """Where our figures differ from the eager ones, or ""."""
    query, key = inputs.tensors(length)
    theirs, ours = eager(query, key, inputs.mask), statistics(query, key, mask=inputs.mask)
    for name, wanted in theirs.items():
        found = ours.links.weight if name == "links" else getattr(ours, name)
        scale = max(1.0, float(wanted.abs().max()))
        if not torch.allclose(found, wanted.expand_as(found), atol=1e-4 * scale, rtol=1e-4):
            return f"{name} differs"
    return ""


def contestants(inputs: Inputs, length: int) -> list[Contestant]:
    query, key = inputs.tensors(length)
    mask, shared = inputs.mask, inputs.key_heads != 8
    is_plain = inputs.is_causal is not None
    given: dict[str, Any] = {"is_causal": inputs.is_causal} if is_plain else {"attn_mask": mask.to_bool(length)}
    calls: dict[str, Call] = {
        OURS: lambda: statistics(query, key, mask=mask),
        BARE: lambda: statistics(query, key, mask=mask, map_size=None, links=0),
        FUSED: lambda: scaled_dot_product_attention(query, key, key, enable_gqa=shared, **given),
        REFERENCE: lambda: attend(query, key, key, mask=mask, engine="reference"),
        EAGER: lambda: eager(query, key, mask),
    }
    faults = {OURS: partial(disagreement, inputs)}
    return [Contestant(name, partial(_ready, call, faults.get(name))) for name, call in calls.items()]


def _ready(call: Call, fault: Callable[[], str] | None) -> Ready:
    timed = torch.no_grad()(call)
    return Ready(timed, fault or (lambda: ""))


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """Each contestant, and the share of its time that the statistics take. Shared with the GPU suite."""
    rows = []
    for outcome in outcomes:
        for row in outcome.rows:
            case = outcome.case.name if row.name == OURS else ""
            if not row.samples:
                rows.append((case, row.name, "-", row.note))
                continue
            faster = None if row.name == OURS else outcome.times_faster(OURS, than=row.name)
            rows.append((case, row.name, ms(row.median), "" if faster is None else f"{1 / faster:.2f}"))
    return Table(("case", "contestant", "ms", "statistics take, of it"), rows, words_first=2)


# Growing lengths, with each call in a separate process.


@dataclass(frozen=True)
class Growth:
    """One contestant at one length: seconds and bytes, or the bytes that it would need."""

    contestant: str
    length: int
    seconds: float | None
    bytes: float | None


class Growing:
    """Predicts the memory of the eager figures from half the length: twice the length is four times the matrix."""

    def __init__(self) -> None:
        self.needed: dict[tuple[str, int], float] = {}

    def tasks(self, longest: int) -> list[Case | Task]:
        lengths = [SHORTEST << n for n in range(32) if SHORTEST << n <= longest]
        return [
            Task(f"{name}, length {length}", partial(self.run, name, length))
            for length in lengths
            for name in (OURS, FUSED, EAGER)
        ]

    def run(self, name: str, length: int, settings: Settings) -> Growth:
        need = 4 * self.needed.get((name, length // 2), 0.0)
        if name == EAGER and need > SAFE_SHARE * free_bytes():
            self.needed[name, length] = need
            return Growth(name, length, None, need)
        found = in_own_process(f"{__name__}:one", settings.progress, name=name, length=length)
        self.needed[name, length] = found["bytes"] or 0.0
        return Growth(name, length, **found)


def one(name: str, length: int) -> dict[str, float | None]:
    """One call at this length: its seconds, and the growth of the peak resident set in bytes."""

    def call(size: int) -> None:
        query, key = INPUTS[0].tensors(size, LONG_HEADS)
        if name == OURS:
            statistics(query, key)
        elif name == FUSED:
            scaled_dot_product_attention(query, key, key, is_causal=True)
        else:
            eager(query, key, INPUTS[0].mask)

    # One-time allocations of torch are not part of the call.
    call(256)
    before, start = start_of_peak(), time.perf_counter()
    call(length)
    seconds, after = time.perf_counter() - start, peak()
    return {"seconds": seconds, "bytes": None if before is None or after is None else float(after - before)}


def table_of_growth(found: Sequence[Growth]) -> Table:
    rows: dict[int, list[str]] = {}
    for each in found:
        if each.seconds is None:
            cells = ["-", f"would need {(each.bytes or 0) / 2**30:.0f} GiB"]
        else:
            cells = [f"{each.seconds:.2f}", "unknown" if each.bytes is None else f"{each.bytes / 2**20:.0f} MiB"]
        rows.setdefault(each.length, []).extend(cells)
    heads = ("length", "statistics, s", "memory", "fused forward, s", "memory", "eager statistics, s", "memory")
    whole = [(f"{length:,}", *cells) for length, cells in rows.items() if len(cells) == len(heads) - 1]
    return Table(heads, whole)


class StatisticsSuite(Suite):
    name, title, suffix = "statistics", "Statistics of attention", "-statistics"

    def options(self, add: Callable[..., object]) -> None:
        add("--length", type=int, help=f"length of the first table (default {LENGTH})")
        add("--longest", type=int, help=f"longest sequence of the second table (default {LONGEST})")

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        length = self._length(args)
        timed: list[Case | Task] = [
            Case(each.name, partial(contestants, each, length), targets=each.targets(), rounds=rounds)
            for each in INPUTS
        ]
        return timed + Growing().tasks(args.longest or (QUICK_LONGEST if args.quick else LONGEST))

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        tables = [("one pass", table_of(outcomes))] if outcomes else []
        if grown := [each for each in results if isinstance(each, Growth)]:
            tables.append((f"as the length grows, {LONG_HEADS} heads, causal", table_of_growth(grown)))
        verdicts = [text for each in outcomes for text in each.verdicts()]
        about = [f"batch 1, 8 heads, length {self._length(args)}, dim {DIM}"]
        return Report(about, tables, verdicts, is_wrong=any_wrong(outcomes))

    def _length(self, args: argparse.Namespace) -> int:
        return args.length or (QUICK_LENGTH if args.quick else LENGTH)


SUITES = (StatisticsSuite(),)
