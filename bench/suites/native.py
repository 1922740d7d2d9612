"""The CPU kernel compared with torch's scaled_dot_product_attention, on all cores.

Useful work is that of the visible pairs: 4 x dim operations per pair forward, 14 x dim with the backward; the peak is
that of a large matrix product in the same dtype.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from bench.attention_case import FORWARD, TRAINING, Attention, AttentionCase, Rival, contest
from bench.harness import (
    CPU,
    Case,
    Outcome,
    Report,
    Settings,
    Suite,
    Target,
    Task,
    any_wrong,
    interleaved,
    outcomes_of,
)
from bench.table import Table
from rearview import attend, causal, documents, full, window
from rearview.attention.engines import native

SDPA, OURS = "SDPA", "rearview native"
ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 9, 3, 1024
PEAK_SIZE = 2048
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# Targets: how many times as fast as SDPA, by direction.
Asked = dict[str, float]


def cases() -> list[tuple[AttentionCase, Asked]]:
    """All cases, with their targets."""
    found: list[tuple[AttentionCase, Asked]] = []
    ids = torch.arange(2048) // 256
    base = AttentionCase("causal", causal, batch=1, heads=8, q_len=0, k_len=0, dim=64, plain={"is_causal": True})

    def add(asked: Asked | None = None, *, length: int, q_len: int | None = None, **changes: Any) -> None:
        case = replace(base, q_len=q_len or length, k_len=length, dtype=dtype, **changes)
        found.append((case, asked or {}))

    for dtype in (torch.bfloat16, torch.float32):
        half = dtype == torch.bfloat16
        for dim in (64, 128):
            for length in (512, 1024, 2048, 4096):
                short = length <= 1024
                forward = (3.0 if short else 2.2) if half else (1.5 if short else 1.2)
                add({FORWARD: forward, TRAINING: 1.5}, length=length, dim=dim)
        asked = {} if half else {FORWARD: 6.0, TRAINING: 5.0}
        add(asked, name="window 256", length=4096, make_mask=lambda: causal() & window(256), plain=None)
        add(name="documents", length=2048, make_mask=lambda: causal() & documents(ids), plain=None)
        add({FORWARD: 1.8}, name="one head", heads=1, length=16384)
        for length in (512, 2048):
            add(name="full", length=length, make_mask=full, plain={})
        for length in (64, 128, 256):
            add(name="short", batch=8, heads=4, length=length, dim=32)
        for dim in (64, 128):
            for heads, key_heads in ((8, None), (32, None), (32, 8)):
                add({FORWARD: 1.0}, name="decode", heads=heads, key_heads=key_heads, q_len=1, length=4096, dim=dim,
                    plain={}, trains=False)  # fmt: skip
    return found


def title(case: AttentionCase) -> str:
    return f"{case.name} {NAMES[case.dtype]} {case.sizes}"


RIVALS = (
    Rival(SDPA, lambda case, device: _sdpa(case)),
    Rival(OURS, lambda case, device: partial(attend, mask=case.make_mask(), engine="native")),
)


def _sdpa(case: AttentionCase) -> Attention:
    options: dict[str, Any] = {} if case.plain is None else dict(case.plain)
    if case.plain is None:
        options["attn_mask"] = case.dense(CPU)
    if case.key_heads:
        options["enable_gqa"] = True
    return partial(F.scaled_dot_product_attention, **options)


@dataclass(frozen=True)
class Peak:
    """Billions of operations per second of a large matrix product."""

    dtype: torch.dtype
    gigaflops: float


def _peak(dtype: torch.dtype) -> Task:
    def run(settings: Settings) -> Peak:
        a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=dtype) for _ in range(2))
        taken = interleaved({"mm": lambda: torch.mm(a, b)}, rounds=7, settings=settings, at_least_ms=1.0)
        # The best of several: what the machine can do when other programs are idle.
        return Peak(dtype, 2 * PEAK_SIZE**3 / min(taken.samples["mm"]) / 1e6)

    return Task(f"peak of a matrix product, {NAMES[dtype]}", run, always=True)


class NativeSuite(Suite):
    name, title, suffix = "native", "The CPU kernel", "-native"

    def options(self, add: Callable[..., object]) -> None:
        add("--isa", choices=native.library.ISAS, help="force an instruction set of the CPU kernel")

    def missing(self, args: argparse.Namespace) -> str:
        return f"engine 'native': {native.library.MISSING}" if native.library.MISSING else ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        if args.isa:
            native.force_isa(args.isa)
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        found: list[Case | Task] = []
        for case, asked in cases():
            if args.quick and case.q_len > QUICK_LENGTH:
                continue
            for direction in case.directions:
                targets = (Target(OURS, SDPA, asked[direction]),) if direction in asked else ()
                item = contest(case, direction, lambda inputs: RIVALS, device=CPU, rounds=rounds, targets=targets)
                facts = {**item.facts, "operations": case.operations(direction), "dtype": NAMES[case.dtype]}
                found.append(replace(item, name=title(case), facts=facts))
        # Before and after, since a busy moment at the start would make every share of the peak too large.
        peaks = [_peak(dtype) for dtype in (torch.float32, torch.bfloat16)]
        return [*peaks, *found, *peaks]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        peaks: dict[str, float] = {}
        for each in results:
            if isinstance(each, Peak):
                peaks[NAMES[each.dtype]] = max(peaks.get(NAMES[each.dtype], 0.0), each.gigaflops)
        outcomes = outcomes_of(results)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        met = sum(text.startswith("met") for text in verdicts)
        about = [
            f"instruction set {native.isa()}; of those here: {', '.join(native.isas())}",
            "peak of a matrix product: " + ", ".join(f"{name} {peaks[name]:.0f} GFLOP/s" for name in sorted(peaks)),
            f"targets met: {met} of {len(verdicts)}",
        ]
        tables = [("", table_of(some, peaks)) for part in (FORWARD, TRAINING) if (some := outcomes_of(results, part))]
        return Report(about, tables, is_wrong=any_wrong(outcomes))


def table_of(outcomes: Sequence[Outcome], peaks: dict[str, float]) -> Table:
    rows = []
    for each in outcomes:
        theirs, ours, faster = each.row(SDPA), each.row(OURS), each.times_faster(OURS, than=SDPA)
        if theirs is None or ours is None or faster is None:
            why = next((row.note for row in each.rows if not row.samples), "")
            rows.append((each.case.name, *["-"] * 5, why))
            continue
        gigaflops = float(each.case.facts["operations"]) / ours.median / 1e6
        share = f"{100 * gigaflops / peaks[str(each.case.facts['dtype'])]:.0f} %"
        times = (f"{row.median:.3g}" for row in (theirs, ours))
        asked = next((target.at_least for target in each.case.targets), None)
        verdict = "" if asked is None else f"{'met' if faster >= asked else 'MISSED'}, asked {asked:g}x"
        rows.append((each.case.name, *times, f"{faster:.2f}x", f"{gigaflops:.0f}", share, verdict))
    headers = (outcomes[0].case.part, "SDPA ms", "native ms", "faster", "GFLOP/s", "of peak", "target")
    return Table(headers, rows, last_is_words=True)


SUITES = (NativeSuite(),)
