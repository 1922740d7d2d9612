"""Statistics of attention: what one pass costs against a forward pass, and what it holds as the length grows.

    python -m bench statistics              # 9 rounds; lengths up to 32k
    python -m bench statistics --quick
    python -m bench statistics --longest 131072

"Eager" is what people do instead: softmax of the full matrix, and the same figures from that. Nobody is timed before
the two agree. Memory is the peak of the resident set, of one call in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import one_hot, scaled_dot_product_attention

from bench import results
from bench.measure import Call, interleaved
from bench.noise import Neighbours
from bench.table import Table
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
# Heads at the growing lengths: fewer, so that the long ones end.
LONG_HEADS, SHORTEST, LONGEST, QUICK_LONGEST = 4, 1024, 32768, 4096
MAP, LINKS, DIM = 64, 32, 64
# A call that would need more than this share of what is free is told of, not made.
SAFE_SHARE = 0.5


@dataclass(frozen=True)
class Case:
    name: str
    mask: Mask
    # What the fused kernel is told; None where it would need a dense mask.
    is_causal: bool | None
    key_heads: int = 8
    dtype: torch.dtype = torch.float32
    # The last so many; all unless given.
    queries: int | None = None
    # What one pass may take of the fused forward. Nothing is asked of a step: there most of the time is in the calls.
    at_most: float | None = 1.0

    def inputs(self, length: int, heads: int = 8) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = ((1, heads, self.queries or length, DIM), (1, min(heads, self.key_heads), length, DIM))
        query, key = (torch.randn(shape, generator=generator).to(self.dtype) for shape in shapes)
        return query, key


CASES = (
    Case("causal", causal(), True, at_most=0.8),
    Case("causal, 2 key heads", causal(), True, key_heads=2),
    Case("causal, bfloat16", causal(), True, dtype=torch.bfloat16),
    Case("full", full(), False),
    Case("causal, window 256", causal() & window(256), None),
    Case("causal, one query", causal(), False, queries=1, at_most=None),
)


@dataclass(frozen=True)
class Target:
    """One pass costs at most so many times another contestant's call."""

    than: str
    at_most: float

    def verdict(self, samples: dict[str, list[float]]) -> str:
        if self.than not in samples:
            return f"not judged: {OURS} against {self.than}: it was not timed"
        came = times(samples, self.than)
        word = "met" if came <= self.at_most else "NOT MET"
        return f"{word}: {OURS} takes {came:.2f} of {self.than}, asked at most {self.at_most:g}"


def verdicts(found: dict[str, dict[str, list[float]]]) -> list[str]:
    said = [f"{CASES[0].name}: {Target(REFERENCE, 0.8).verdict(found[CASES[0].name])}"]
    for case in CASES:
        if case.at_most is not None:
            said.append(f"{case.name}: {Target(FUSED, case.at_most).verdict(found[case.name])}")
    return said


def times(samples: dict[str, list[float]], than: str, name: str = OURS) -> float:
    """How many times as long: the median over rounds of the ratio in the same round.

    >>> times({OURS: [1.0, 4.0, 3.0], FUSED: [2.0, 2.0, 2.0]}, FUSED)
    1.5
    """
    return median(a / b for a, b in zip(samples[name], samples[than], strict=True))


def eager(query: Tensor, key: Tensor, mask: Mask) -> dict[str, Tensor]:
    """The same figures from the full matrix, written as one would write them in a notebook."""
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


def disagreement(case: Case, length: int = 300) -> str:
    """Where our figures differ from the eager ones; empty when nowhere."""
    query, key = case.inputs(length)
    theirs, ours = eager(query, key, case.mask), statistics(query, key, mask=case.mask)
    for name, wanted in theirs.items():
        found = ours.links.weight if name == "links" else getattr(ours, name)
        scale = max(1.0, float(wanted.abs().max()))
        if not torch.allclose(found, wanted.expand_as(found), atol=1e-4 * scale, rtol=1e-4):
            return f"{case.name}: {name} differs"
    return ""


def contestants(case: Case, length: int) -> dict[str, Call]:
    query, key = case.inputs(length)
    mask, shared = case.mask, case.key_heads != 8
    calls: dict[str, Call] = {
        OURS: lambda: statistics(query, key, mask=mask),
        BARE: lambda: statistics(query, key, mask=mask, map_size=None, links=0),
        REFERENCE: lambda: attend(query, key, key, mask=mask, engine="reference"),
        EAGER: lambda: eager(query, key, mask),
    }
    if case.is_causal is None:
        dense = mask.to_bool(length)
        calls[FUSED] = lambda: scaled_dot_product_attention(query, key, key, attn_mask=dense, enable_gqa=shared)
    else:
        calls[FUSED] = lambda: scaled_dot_product_attention(
            query, key, key, is_causal=case.is_causal is True, enable_gqa=shared
        )
    return calls


def table_of(found: dict[str, dict[str, list[float]]]) -> Table:
    rows = []
    for case, samples in found.items():
        for name in (OURS, BARE, FUSED, REFERENCE, EAGER):
            ratio = "" if name == OURS else f"{times(samples, name):.2f}"
            ms = median(samples[name])
            rows.append((case if name == OURS else "", name, f"{ms:.1f}" if ms >= 10 else f"{ms:.3f}", ratio))
    return Table(("case", "contestant", "ms", "statistics take, of it"), rows)


# The growing lengths, each call in a process of its own.

Grown = dict[str, tuple[float, float] | str]


def grow(lengths: Sequence[int], progress: Callable[[str], None] = lambda text: None) -> dict[int, Grown]:
    """For each length and contestant: (seconds, bytes); or what it would have needed."""
    found: dict[int, Grown] = {}
    for length in lengths:
        found[length] = {}
        for name in (OURS, FUSED, EAGER):
            progress(f"{name}, length {length}")
            before = found.get(length // 2, {}).get(name, (0.0, 0.0))
            if name == EAGER and (need := _eager_need(before)) > SAFE_SHARE * _free_bytes():
                found[length][name] = f"would need {need / 2**30:.0f} GiB"
                continue
            found[length][name] = _in_a_process(name, length)
    return found


def _eager_need(before: tuple[float, float] | str) -> float:
    """Twice the length is four times the matrix."""
    if isinstance(before, str):
        return 4 * 2**30 * float(before.split()[2])
    return 4 * before[1]


def _in_a_process(name: str, length: int) -> tuple[float, float]:
    words = [sys.executable, "-m", "bench.statistics", "--one", name, "--length", str(length)]
    words += ["--threads", str(torch.get_num_threads())]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    told = json.loads(done.stdout.splitlines()[-1])
    return told["seconds"], told["bytes"]


def one(name: str, length: int) -> dict[str, float]:
    """One call at this length: its seconds, and by how many bytes the peak of the resident set rose."""
    case = CASES[0]

    def call(size: int) -> None:
        query, key = case.inputs(size, LONG_HEADS)
        if name == OURS:
            statistics(query, key)
        elif name == FUSED:
            scaled_dot_product_attention(query, key, key, is_causal=True)
        else:
            eager(query, key, case.mask)

    # What torch takes once is not the call's.
    call(256)
    before, start = _resident(), time.perf_counter()
    call(length)
    return {"seconds": time.perf_counter() - start, "bytes": _resident(peak=True) - before}


def _resident(*, peak: bool = False) -> float:
    """Bytes of the resident set, now or at its peak since it was last asked for. Linux; elsewhere unknown."""
    # Not getrusage: a process starts there with the peak of the one that started it.
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        if not peak:
            Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return math.nan
    name = "VmHWM:" if peak else "VmRSS:"
    return 1024 * float(next(line for line in lines if line.startswith(name)).split()[1])


def _free_bytes() -> float:
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return 2.0**32


def table_of_growth(found: dict[int, Grown]) -> Table:
    rows = []
    for length, each in found.items():
        cells = []
        for name in (OURS, FUSED, EAGER):
            told = each[name]
            cells += ["-", told] if isinstance(told, str) else [f"{told[0]:.2f}", _mib(told[1])]
        rows.append((f"{length:,}", *cells))
    heads = ("length", "statistics, s", "memory", "fused forward, s", "memory", "eager statistics, s", "memory")
    return Table(heads, rows)


def _disturbed(loud: int, rounds: int) -> str:
    """
    >>> _disturbed(5, 10)
    '5 of 10 disturbed: DO NOT TRUST these times'
    """
    return f"{loud} of {rounds} disturbed" + (": DO NOT TRUST these times" if loud > rounds // 4 else "")


def _mib(count: float) -> str:
    return "unknown" if math.isnan(count) else f"{count / 2**20:.0f} MiB"


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when a figure is wrong."""
    args = _parser().parse_args(argv)
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.one:
        print(json.dumps(one(args.one, args.length)))
        return 0
    if wrong := [text for case in CASES if (text := disagreement(case))]:
        print("WRONG:", *wrong, sep="\n")
        return 1
    length = args.length or (QUICK_LENGTH if args.quick else LENGTH)
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    longest = args.longest or (QUICK_LONGEST if args.quick else LONGEST)
    neighbours, loud, found = Neighbours(), 0, {}
    with torch.no_grad():
        for case in CASES:
            print(f"{case.name} ...", file=sys.stderr)
            taken = interleaved(
                contestants(case, length),
                rounds=rounds,
                device=torch.device("cpu"),
                at_least_ms=5.0,
                patience_s=args.patient,
            )
            found[case.name], loud = taken.samples, loud + taken.loud
    lengths = [SHORTEST << n for n in range(32) if SHORTEST << n <= longest]
    grown = grow(lengths, progress=lambda text: print(f"{text} ...", file=sys.stderr))
    machine, share = results.Machine.here(torch.device("cpu")), neighbours.share()
    about = [
        *machine.lines(torch.get_num_threads()),
        f"batch 1, 8 heads, length {length}, dim {DIM}; {rounds} rounds, {_disturbed(loud, rounds * len(CASES))}",
        *([f"other programs used {100 * share:.0f} % of the processors meanwhile"] if share is not None else []),
    ]
    tables = {"one pass": table_of(found), f"as the length grows, {LONG_HEADS} heads, causal": table_of_growth(grown)}
    judged = verdicts(found)
    print(*about, sep="\n")
    for title, table in tables.items():
        print(f"\n{title}\n")
        table.show()
    print("", *judged, sep="\n")
    if not (args.quick or args.no_save):
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-statistics")
        parts = [f"# Statistics of attention, {date.today().isoformat()}", "\n".join(f"- {line}" for line in about)]
        parts += [f"## {title}\n\n{table.markdown()}" for title, table in tables.items()]
        results.write(path, "\n\n".join([*parts, "\n".join(f"- {each}" for each in judged)]) + "\n")
        print(f"\nkept in bench/results/{path.name}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench statistics", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds at length {QUICK_LENGTH}; keeps no file")
    add("--rounds", type=int, help=f"default {ROUNDS}")
    add("--length", type=int, help=f"of the first table (default {LENGTH})")
    add("--longest", type=int, help=f"of the second table (default {LONGEST})")
    add("--threads", type=int, help="threads of torch (default: its own choice)")
    add("--patient", type=int, nargs="?", const=300, default=0, metavar="SECONDS",
        help="wait so long for other programs to be quiet")  # fmt: skip
    add("--no-save", action="store_true", help="keep no file in bench/results/")
    add("--one", choices=(OURS, FUSED, EAGER), help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
