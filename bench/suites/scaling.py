"""The CPU kernel on a server: training sizes compared with SDPA, and the same work on 1, 2, 4, ... threads.

The share of linear is the speed-up over one thread, divided by the number of threads. Processors that share clocks,
cores or caches do not reach 1 with any work, so products of small matrices, which have nothing in common, are measured
too.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch

from bench.attention_case import FORWARD, TRAINING, AttentionCase, Inputs, contest
from bench.harness import (
    CPU,
    Call,
    Case,
    Contestant,
    Outcome,
    Ready,
    Report,
    Suite,
    Target,
    Task,
    any_wrong,
    outcomes_of,
)
from bench.suites.native import OURS, RIVALS, SDPA, title
from bench.table import Table
from rearview import attend, causal, window
from rearview.attention.engines import native

ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 9, 3, 2048
THREADS = (1, 2, 4, 8, 16, 32, 64)
SPEEDUP = "threads"
# Asked of 16 threads, as a multiple of the speed of one.
LINEAR = {FORWARD: 12.0, TRAINING: 11.0}
PRODUCTS = "torch.bmm fp32 2048 x 64 x 64"

BASE = AttentionCase("causal", causal, batch=1, heads=8, q_len=0, k_len=0, dim=64, plain={"is_causal": True})


def sized(length: int, **changes: object) -> AttentionCase:
    return replace(BASE, q_len=length, k_len=length, **changes)  # pyright: ignore[reportArgumentType]


def compared() -> list[tuple[AttentionCase, dict[str, float]]]:
    """What is compared with SDPA, with the targets of each direction."""
    found: list[tuple[AttentionCase, dict[str, float]]] = []
    half = torch.bfloat16
    for dim in (64, 128):
        for length in (2048, 4096, 8192):
            found.append((sized(length, dim=dim, dtype=half), {FORWARD: 1.1, TRAINING: 1.3}))
    narrow = sized(4096, dtype=half, name="window 256", make_mask=lambda: causal() & window(256), plain=None)
    found.append((narrow, {FORWARD: 10.0, TRAINING: 10.0}))
    found.append((sized(4096, dtype=half, heads=1, name="one head"), {}))
    found += [(sized(8192, dim=dim), {TRAINING: 1.3}) for dim in (64, 128)]
    found += [(sized(2048, dim=dim, dtype=torch.float16), {}) for dim in (64, 128)]
    return found


def scaled() -> list[tuple[AttentionCase, str]]:
    """What is run on more and more threads, and in which direction."""
    step = AttentionCase("decode", causal, batch=1, heads=32, key_heads=8, q_len=1, k_len=32768, dim=128, plain={})
    found = [
        (sized(4096, dtype=dtype, dim=dim), direction)
        for dtype, dim in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float32, 64))
        for direction in (FORWARD, TRAINING)
    ]
    return [
        *found,
        (sized(8192, dtype=torch.bfloat16, heads=1, name="one head"), TRAINING),
        (replace(step, dtype=torch.bfloat16), FORWARD),
        (step, FORWARD),
    ]


def counts() -> list[int]:
    """1, 2, 4, ... up to the number of processors."""
    return [count for count in THREADS if count <= (os.cpu_count() or 1)]


def on_threads(count: int, call: Call) -> Call:
    def run() -> object:
        before = torch.get_num_threads()
        torch.set_num_threads(count)
        try:
            return call()
        finally:
            torch.set_num_threads(before)

    return run


def of_case(case: AttentionCase, direction: str) -> Callable[[], Sequence[Contestant]]:
    def contestants() -> list[Contestant]:
        inputs = Inputs.of(case, CPU)
        leaves, mask = inputs.leaves(backward=direction == TRAINING), case.make_mask()

        def forward() -> object:
            with torch.no_grad():
                return attend(*leaves, mask=mask, engine="native")

        def training() -> object:
            return torch.autograd.grad(attend(*leaves, mask=mask, engine="native"), leaves, inputs.d_out)

        call = training if direction == TRAINING else forward
        return [_contestant(count, on_threads(count, call)) for count in counts()]

    return contestants


def of_small_products() -> list[Contestant]:
    """Products of matrices that fit into the first caches: what more threads are worth on this machine."""
    one, other = torch.randn(2048, 64, 64), torch.randn(2048, 64, 64)
    return [_contestant(count, on_threads(count, lambda: torch.bmm(one, other))) for count in counts()]


def _contestant(count: int, call: Call) -> Contestant:
    def prepare() -> Ready:
        call()
        return Ready(call)

    return Contestant(str(count), prepare)


class ScalingSuite(Suite):
    name, title, suffix = "scaling", "The CPU kernel on many cores", "-scaling"

    def missing(self, args: argparse.Namespace) -> str:
        return f"engine 'native': {native.library.MISSING}" if native.library.MISSING else ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        found: list[Case | Task] = []
        for case, asked in compared():
            if args.quick and case.q_len > QUICK_LENGTH:
                continue
            for direction in case.directions:
                targets = (Target(OURS, SDPA, asked[direction]),) if direction in asked else ()
                item = contest(case, direction, lambda inputs: RIVALS, device=CPU, rounds=rounds, targets=targets)
                found.append(replace(item, name=title(case)))
        for case, direction in scaled():
            if args.quick and case.k_len > QUICK_LENGTH:
                continue
            most = str(counts()[-1])
            asked_of = direction in LINEAR and case.q_len > 1 and most == "16"
            targets = (Target(most, "1", LINEAR[direction]),) if asked_of else ()
            name = f"{title(case)}, {direction}"
            found.append(Case(name, of_case(case, direction), SPEEDUP, targets, max(1, rounds // 3)))
        found.append(Case(PRODUCTS, of_small_products, SPEEDUP, rounds=rounds))
        return found

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        about = [f"instruction set {native.isa()}; of those here: {', '.join(native.isas())}"]
        tables = [
            (f"{direction}, compared with SDPA", compared_table(some))
            for direction in (FORWARD, TRAINING)
            if (some := outcomes_of(results, direction))
        ]
        if some := outcomes_of(results, SPEEDUP):
            tables.append(("ms on so many threads, and the share of linear", scaling_table(some)))
        verdicts = [text for each in outcomes for text in each.verdicts()]
        return Report(about, tables, verdicts, is_wrong=any_wrong(outcomes))


def compared_table(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for each in outcomes:
        theirs, ours, faster = each.row(SDPA), each.row(OURS), each.times_faster(OURS, than=SDPA)
        if theirs is None or ours is None or faster is None:
            rows.append((each.case.name, "-", "-", next((row.note for row in each.rows if not row.samples), "")))
            continue
        rows.append((each.case.name, f"{theirs.median:.3g}", f"{ours.median:.3g}", f"{faster:.2f}x"))
    return Table((outcomes[0].case.part, "SDPA ms", "native ms", "faster"), rows)


def scaling_table(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for each in outcomes:
        cells = []
        for count in counts():
            row, faster = each.row(str(count)), each.times_faster(str(count), than="1")
            cells.append("-" if row is None or faster is None else f"{row.median:.3g} ({faster / count:.2f})")
        most = each.times_faster(str(counts()[-1]), than="1")
        rows.append((each.case.name, *cells, "-" if most is None else f"{most:.1f}x"))
    return Table(("threads", *map(str, counts()), f"1 to {counts()[-1]}"), rows)


SUITES = (ScalingSuite(),)
