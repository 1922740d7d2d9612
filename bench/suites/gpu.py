"""Rearview on a GPU beside cuDNN, FlexAttention at its best, SDPA and transformers, with the targets for an H200.

Every shape is measured in a process of its own, so that FlexAttention is compiled for static shapes; the contestants of
a shape take turns. Answers and gradients are checked at full size before anything is timed. Compilation takes most of
the time, so processes compile together; when all of a group have, they measure one after the other.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.harness import Case, Report, Settings, Suite, Task
from bench.process import Failed, InTurn
from bench.suites.gpu_attention import TOLERANCE, fault
from bench.table import Table

MASKED = ("window", "documents", "prefix", "sinks and window")
# The shapes of the composed masks: batch, heads, length, dim.
SHAPES = ((1, 16, 16384, 128), (8, 16, 2048, 128), (1, 32, 16384, 64))
# Of causal attention: 16k tokens in all, and 2k hidden features.
CAUSAL = tuple(
    (16384 // length, 2048 // dim, length, dim) for dim in (128, 64) for length in (1024, 2048, 4096, 8192, 16384)
)
# (batch, length, window); 32 query heads, 8 key heads, dim 128.
CACHES = ((1, 32768, 4096), (1, 32768, None), (8, 8192, None), (64, 4096, None), (1, 131072, None))
QUICK_CACHES = CACHES[:2]
GENERATIONS = ("graph", "eager", "transformers")
TRAININGS = ("ours", "flex", "plain")

WINDOW_US, SHARE_OF_SDPA, HOST_US, TRAINING_RATIO = 12.0, 0.98, 10.0, 1.15


@dataclass(frozen=True)
class Found:
    """What one process found: the part of the report that it belongs to, and its result or why there is none."""

    part: str
    name: str
    result: Any = None
    failure: str = ""


def causal_target(length: int, dim: int, direction: str) -> float:
    """The least speed relative to cuDNN."""
    if direction == "backward":
        return 0.95 if dim == 128 else 1.02
    return 1.0 if length < 4096 else 1.05


def masked_target(dim: int, direction: str) -> float:
    """The least speed relative to FlexAttention."""
    return {("forward", 128): 1.5, ("forward", 64): 1.3, ("backward", 128): 1.2, ("backward", 64): 1.4}[direction, dim]


@dataclass(frozen=True)
class Process(Task):
    """A task in a process of its own, which compiles together with others."""

    function: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    # Processors that have just compiled are slower for a while, which the host's times would show.
    alone: bool = False


class GpuSuite(Suite):
    name, title, suffix = "gpu", "Attention on a GPU", "-gpu"

    def __init__(self) -> None:
        self.processes = InTurn(1)

    def options(self, add: Callable[..., object]) -> None:
        add("--engine", default="auto", help='the engine of `attend` in the tables of masks (default "auto")')
        add("--together", type=int, default=os.cpu_count(), metavar="N",
            help="processes that compile together, each with 2 to 4 GiB (default: the number of CPUs)")  # fmt: skip

    def device(self, args: argparse.Namespace) -> torch.device:
        return torch.device("cuda")

    def missing(self, args: argparse.Namespace) -> str:
        return "" if torch.cuda.is_available() else "torch finds no GPU here"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        if args.together < 1:
            raise SystemExit(f"--together: expected at least 1, got {args.together}")
        tasks: list[Case | Task] = []
        self.processes = InTurn(args.together)

        def add(part: str, name: str, function: str, *, alone: bool = False, **arguments: Any) -> None:
            function = f"bench.suites.{function}"

            def run(settings: Settings) -> Found:
                try:
                    return Found(part, name, self.processes.result(function, arguments, settings.progress))
                except Failed as failure:
                    return Found(part, name, failure=str(failure))

            tasks.append(Process(f"{part}: {name}", run, function=function, arguments=arguments, alone=alone))

        add("host", "host time", "gpu_serving:called", alone=True)
        for batch, length, window in QUICK_CACHES if args.quick else CACHES:
            cut = f", window {window}" if window else ""
            add("one token", f"B{batch} K{length}{cut}", "gpu_serving:decoded", batch=batch, length=length,
                window_keys=window)  # fmt: skip
        for which in GENERATIONS:
            add("generation", which, "gpu_serving:generated", which=which)
        causal = [shape for shape in CAUSAL if shape[2] in (2048, 16384) or not args.quick]
        for kinds, shapes in ((["causal"], causal), (list(MASKED), SHAPES[1:2] if args.quick else SHAPES)):
            for batch, heads, length, dim in shapes:
                add(
                    "causal" if kinds == ["causal"] else "masks", f"B{batch} H{heads} L{length} D{dim}",
                    "gpu_attention:measured", batch=batch, heads=heads, length=length, dim=dim, names=kinds,
                    engine=args.engine,
                )  # fmt: skip
        for which in TRAININGS if not args.quick else TRAININGS[:1]:
            add("training", which, "gpu_training:stepped", which=which)
        return tasks

    def expect(self, items: Sequence[Case | Task]) -> None:
        for item in items:
            assert isinstance(item, Process), "every item of this suite is one"
            self.processes.add(item.function, item.arguments, alone=item.alone)

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        found = [each for each in results if isinstance(each, Found)]
        failures = [f"{each.part}, {each.name}: {each.failure}" for each in found if each.failure]
        rows = {part: [each.result for each in found if each.part == part and each.result is not None]
                for part in ("one token", "host", "generation", "causal", "masks", "training")}  # fmt: skip
        shapes = [row for part in ("causal", "masks") for shape in rows[part] for row in shape]
        drawn = [
            ("one token over a cache (us on the GPU)", decode_table(rows["one token"])),
            ("host time of a warm call (us)", host_table(rows["host"])),
            ("generation, 124 million parameters, bfloat16, one sequence", generation_table(rows["generation"])),
            ("masks (TFLOP/s of visible pairs)", mask_table(shapes)),
            ("a training step, 124 million parameters, packed documents, compiled", training_table(rows["training"])),
        ]
        verdicts = [*decode_verdicts(rows["one token"]), *host_verdicts(rows["host"]), *mask_verdicts(shapes),
                    *training_verdicts(rows["training"])]  # fmt: skip
        about = [f"engine of the masks: {args.engine}", *failures]
        wrong = any(fault(row["errors"]) for row in shapes) or any(
            row["error"] > TOLERANCE for row in rows["one token"]
        )
        return Report(about, [(name, table) for name, table in drawn if table.rows], verdicts, is_wrong=wrong)


def decode_table(rows: Sequence[dict]) -> Table:
    lines = []
    for row in rows:
        cut = f"window {row['window']} of " if row["window"] else ""
        rate = f"{row['bytes'] / row['ours'] / 1e6:.2f}"
        times = (
            f"{row['ours']:.1f}",
            f"{row['lengths']:.1f}",
            f"{row['rival']:.1f}",
            f"{row['ours'] / row['rival']:.3f}",
        )
        lines.append((f"B{row['batch']}, {cut}{row['length']} keys", *times, rate, f"{row['error']:.1e}"))
    return Table(("cache", "ours", "lengths on the GPU", "SDPA, cut", "of SDPA", "TB/s", "error"), lines)


def decode_verdicts(rows: Sequence[dict]) -> list[str]:
    """Each target as met or not.

    >>> row = {"batch": 1, "length": 32768, "window": 4096, "ours": 11.5, "rival": 11.9, "error": 1e-3}
    >>> decode_verdicts([row])
    ['met: one token, window 4096 of 32768 keys: 11.5 us, asked at most 12 us']
    """
    found = []
    for row in rows:
        if row["window"]:
            word, told = row["ours"] <= WINDOW_US, f"{row['ours']:.1f} us, asked at most {WINDOW_US:g} us"
            name = f"window {row['window']} of {row['length']} keys"
        else:
            share = row["ours"] / row["rival"]
            word, told = share <= SHARE_OF_SDPA, f"{share:.3f} of SDPA's time, asked at most {SHARE_OF_SDPA:g}"
            name = f"B{row['batch']}, {row['length']} keys"
        found.append(f"{'met' if word else 'NOT MET'}: one token, {name}: {told}")
    return found


def host_table(rows: Sequence[dict]) -> Table:
    lines = [
        (group, name, f"{us:.1f}", f"{us - calls['SDPA']:+.1f}")
        for row in rows
        for group, calls in row.items()
        for name, us in calls.items()
    ]
    return Table(("call", "contestant", "us", "over SDPA"), lines, words_first=2)


def host_verdicts(rows: Sequence[dict]) -> list[str]:
    found = []
    for row in rows:
        for group, calls in row.items():
            for name, us in calls.items():
                over = us - calls["SDPA"]
                if name != "SDPA":
                    word = "met" if over <= HOST_US else "NOT MET"
                    found.append(f"{word}: host time, {group}, {name}: {over:+.1f} us over SDPA, asked {HOST_US:+g}")
    return found


def generation_table(rows: Sequence[dict]) -> Table:
    names = {"graph": "rearview, CUDA graph", "eager": "rearview, no graph",
             "transformers": "transformers, static cache, compiled"}  # fmt: skip
    first = rows[0]["tokens"] if rows else []
    lines = [
        (names[row["which"]], f"{row['ms']:.3f}", f"{1000 / row['ms']:.0f}", "yes" if row["tokens"] == first else "no")
        for row in rows
    ]
    return Table(("generation", "ms per token", "tokens/s", "the same tokens"), lines)


def mask_table(rows: Sequence[dict]) -> Table:
    lines = []
    for row in rows:
        cells = []
        for direction, work in (("forward", 1.0), ("backward", 2.5)):
            ours, theirs = row[direction]["ours"], row[direction]["rival"]
            rates = [work * row["operations"] / us / 1e6 for us in (ours, theirs)]
            cells += [f"{rates[0]:.0f}", f"{rates[1]:.0f}", f"{theirs / ours:.2f}"]
        note = fault(row["errors"])
        engines = ", ".join(row["engines"]) + (f"; WRONG: {note}" if note else "")
        lines.append((row["shape"], row["mask"], row["rival"], *cells, engines))
    headers = ("shape", "mask", "rival", "forward", "rival's", "ratio", "backward", "rival's", "ratio", "engines")
    return Table(headers, lines, last_is_words=True, words_first=3)


def mask_verdicts(rows: Sequence[dict]) -> list[str]:
    found = []
    for row in rows:
        words = dict((word[0], int(word[1:])) for word in row["shape"].split())
        for direction in ("forward", "backward"):
            ratio = row[direction]["rival"] / row[direction]["ours"]
            if row["rival"] == "cuDNN":
                asked = causal_target(words["L"], words["D"], direction)
            else:
                asked = masked_target(words["D"], direction)
            note = fault(row["errors"])
            word = "WRONG" if note else "met" if ratio >= asked and math.isfinite(ratio) else "NOT MET"
            found.append(
                f"{word}: {row['mask']}, {row['shape']}, {direction}: {ratio:.2f}x {row['rival']}, asked {asked:g}x"
            )
    return found


def training_table(rows: Sequence[dict]) -> Table:
    names = {
        "ours": "rearview train",
        "flex": "plain model, FlexAttention",
        "plain": "plain model, SDPA, no document mask",
    }
    lines = [
        (names[row["which"]], f"{row['ms']:.1f}", f"{row['tokens_per_s'] / 1000:.0f}", f"{100 * row['share']:.0f} %",
         f"{row['memory'] / 2**30:.1f}", f"{row['losses'][-1]:.3f}")
        for row in rows
    ]  # fmt: skip
    headers = ("training", "ms per step", "thousand tokens/s", "of the matrix rate", "GiB", "last loss")
    return Table(headers, lines)


def training_verdicts(rows: Sequence[dict]) -> list[str]:
    by_name = {row["which"]: row["ms"] for row in rows}
    if not {"ours", "flex"} <= by_name.keys():
        return []
    ratio = by_name["flex"] / by_name["ours"]
    word = "met" if ratio >= TRAINING_RATIO else "NOT MET"
    return [f"{word}: a training step: {ratio:.2f}x FlexAttention, asked {TRAINING_RATIO:g}x"]


SUITES = (GpuSuite(),)
