"""`python -m bench native`: the CPU kernel beside torch's scaled_dot_product_attention, on all cores.

    python -m bench native                     # all cases, keeps a dated file
    python -m bench native --quick             # lengths up to 1024, 3 rounds
    python -m bench native --cases "causal bf16"

Both take turns in one run. Useful work is that of the visible pairs: 4 x dim operations a pair forward, 14 x dim with
the backward; the peak is that of a large matrix product in the same dtype. Nobody is timed whose answer is wrong.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bench import results
from bench.judge import TOLERANCE
from bench.measure import FORWARD, TRAINING, Call, Rounds, interleaved
from bench.noise import Neighbours
from bench.table import Table
from rearview import Mask, attend, causal, documents, full, window
from rearview.attention.engines import native

SDPA, OURS = "SDPA", "native"
ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 9, 3, 1024
PEAK_SIZE = 2048
# The definition of so many rows is computed in float64 to judge by; of longer sequences the last rows.
JUDGED_ROWS = 128
CPU = torch.device("cpu")
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class Case:
    """One shape and mask; `at_least` says how many times as fast as SDPA it should be, by direction."""

    name: str
    dtype: torch.dtype
    heads: int
    q_len: int
    k_len: int
    dim: int
    make_mask: Callable[[], Mask] = causal
    batch: int = 1
    key_heads: int | None = None
    # What a user gives SDPA; None: the mask as a dense tensor of bools.
    plain: dict[str, bool] | None = None
    trains: bool = True
    at_least: dict[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        lengths = f"L{self.k_len}" if self.q_len == self.k_len else f"Q{self.q_len} K{self.k_len}"
        grouped = f"/{self.key_heads}" if self.key_heads else ""
        return f"{self.name} {NAMES[self.dtype]} B{self.batch} H{self.heads}{grouped} {lengths} D{self.dim}"

    @property
    def pairs(self) -> int:
        """Visible ones, of all batch items and heads."""
        spans = self.make_mask().spans(self.q_len, self.k_len)
        return spans.area * (self.batch // spans.batch) * (self.heads // spans.heads)

    def operations(self, direction: str) -> int:
        return (4 if direction == FORWARD else 14) * self.dim * self.pairs

    def tensors(self) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = [(self.heads, self.q_len), *[(self.key_heads or self.heads, self.k_len)] * 2, (self.heads, self.q_len)]
        return [torch.randn(self.batch, *shape, self.dim, generator=generator).to(self.dtype) for shape in shapes]

    def contestants(self) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
        mask, plain = self.make_mask(), self.plain
        options: dict[str, Any] = {} if plain is None else dict(plain)
        if plain is None:
            options["attn_mask"] = mask.to_bool(self.q_len, self.k_len)
        if self.key_heads:
            options["enable_gqa"] = True
        return {
            SDPA: lambda query, key, value: F.scaled_dot_product_attention(query, key, value, **options),
            OURS: lambda query, key, value: attend(query, key, value, mask=mask, engine="native"),
        }


def cases() -> list[Case]:
    """Everything that is measured, with the figures that are asked for."""
    found, is_causal = [], {"is_causal": True}
    for dtype in (torch.bfloat16, torch.float32):
        half = dtype == torch.bfloat16
        for dim in (64, 128):
            for length in (512, 1024, 2048, 4096):
                short = length <= 1024
                ratio = (3.0 if short else 2.2) if half else (1.5 if short else 1.2)
                asked = {FORWARD: ratio, TRAINING: 1.5}
                found.append(Case("causal", dtype, 8, length, length, dim, plain=is_causal, at_least=asked))
        asked = {} if half else {FORWARD: 6.0, TRAINING: 5.0}
        found.append(Case("window 256", dtype, 8, 4096, 4096, 64, lambda: causal() & window(256), at_least=asked))
        found.append(Case("documents", dtype, 8, 2048, 2048, 64, lambda: causal() & documents(_ids(2048, 256))))
        found.append(Case("one head", dtype, 1, 16384, 16384, 64, plain=is_causal, at_least={FORWARD: 1.8}))
        found += [Case("full", dtype, 8, length, length, 64, full, plain={}) for length in (512, 2048)]
        for length in (64, 128, 256):
            found.append(Case("short", dtype, 4, length, length, 32, batch=8, plain=is_causal))
        for dim in (64, 128):
            for heads, key_heads in ((8, None), (32, None), (32, 8)):
                step = Case("decode", dtype, heads, 1, 4096, dim, key_heads=key_heads, plain={}, trains=False,
                            at_least={FORWARD: 1.0})  # fmt: skip
                found.append(step)
    return found


def _ids(length: int, each: int) -> Tensor:
    return torch.arange(length) // each


@dataclass(frozen=True)
class Outcome:
    case: Case
    direction: str
    taken: Rounds
    fault: str = ""

    @property
    def ratio(self) -> float | None:
        """How many times as fast as SDPA: the median over rounds of the ratio in the same round."""
        if self.fault:
            return None
        pairs = zip(self.taken.samples[SDPA], self.taken.samples[OURS], strict=True)
        return statistics.median(theirs / ours for theirs, ours in pairs)

    def median(self, name: str) -> float:
        return statistics.median(self.taken.samples[name])

    @property
    def gigaflops(self) -> float:
        return self.case.operations(self.direction) / self.median(OURS) / 1e6

    def verdict(self) -> str:
        asked = self.case.at_least.get(self.direction)
        if asked is None or self.ratio is None:
            return self.fault
        return f"{'met' if self.ratio >= asked else 'MISSED'}, asked {asked:g}x"


def fault_of(case: Case, *, backward: bool) -> str:
    """What is wrong with the kernel's answer, or nothing: against the definition in float64, of the last rows."""
    *tensors, d_out = case.tensors()
    rows = slice(max(0, case.q_len - JUDGED_ROWS), None)
    if case.q_len > JUDGED_ROWS:
        # With gradients from these rows alone, those of keys and values are theirs alone too.
        d_out[:, :, : rows.start] = 0
    leaves = [tensor.requires_grad_(backward) for tensor in tensors]
    out = attend(*leaves, mask=case.make_mask(), engine="native")
    exact = [leaves[0][:, :, rows], *leaves[1:]]
    exact = [tensor.detach().double().requires_grad_(backward) for tensor in exact]
    right = attend(*exact, mask=case.make_mask(), engine="reference")
    pairs = [("the output", out[:, :, rows], right)]
    if backward:
        came = list(torch.autograd.grad(out, leaves, d_out))
        wanted = torch.autograd.grad(right, exact, d_out[:, :, rows].double())
        came[0] = came[0][:, :, rows]
        pairs += [(f"the gradient of {name}", *pair)
                  for name, *pair in zip(("query", "key", "value"), came, wanted, strict=True)]  # fmt: skip
    for name, one, other in pairs:
        one, other = one.detach().double(), other.detach()
        error = float((one - other).abs().max() / other.abs().max())
        if not error <= TOLERANCE[case.dtype]:
            return f"WRONG: {name} is off by {error:.1e}"
    return ""


def measure(case: Case, *, rounds: int, patience_s: float) -> list[Outcome]:
    outcomes = []
    for direction in (FORWARD, TRAINING) if case.trains else (FORWARD,):
        backward = direction == TRAINING
        fault = fault_of(case, backward=backward)
        if fault:
            outcomes.append(Outcome(case, direction, Rounds({}, 0), fault))
            continue
        *tensors, d_out = case.tensors()
        leaves = [tensor.requires_grad_(backward) for tensor in tensors]
        calls: dict[str, Call] = {}
        for name, attention in case.contestants().items():
            calls[name] = _call(attention, leaves, d_out if backward else None)
        # Long calls say as much in fewer rounds.
        number = max(3, rounds // 3) if case.q_len * case.k_len > 2**25 else rounds
        taken = interleaved(calls, rounds=number, device=CPU, at_least_ms=5.0, patience_s=patience_s)
        outcomes.append(Outcome(case, direction, taken))
    return outcomes


def _call(attention: Callable[..., Tensor], leaves: list[Tensor], d_out: Tensor | None) -> Call:
    def forward() -> object:
        with torch.no_grad():
            return attention(*leaves)

    return forward if d_out is None else lambda: torch.autograd.grad(attention(*leaves), leaves, d_out)


def peak(dtype: torch.dtype, *, patience_s: float) -> float:
    """Billions of operations a second of a large matrix product."""
    a, b = (torch.randn(PEAK_SIZE, PEAK_SIZE, dtype=dtype) for _ in range(2))
    taken = interleaved({"mm": lambda: torch.mm(a, b)}, rounds=7, device=CPU, patience_s=patience_s)
    # The best: what the machine can do, not what it did while others were busy.
    return 2 * PEAK_SIZE**3 / min(taken.samples["mm"]) / 1e6


def table_of(outcomes: Sequence[Outcome], direction: str, peaks: dict[torch.dtype, float]) -> Table:
    rows = []
    for each in outcomes:
        if each.direction != direction:
            continue
        if each.ratio is None:
            rows.append((each.case.title, *["-"] * 5, each.verdict()))
            continue
        share = f"{100 * each.gigaflops / peaks[each.case.dtype]:.0f} %"
        times = (f"{each.median(name):.3g}" for name in (SDPA, OURS))
        rows.append((each.case.title, *times, f"{each.ratio:.2f}x", f"{each.gigaflops:.0f}", share, each.verdict()))
    headers = (direction, f"{SDPA} ms", f"{OURS} ms", "faster", "GFLOP/s", "of peak", "target")
    return Table(headers, rows, last_is_words=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when the kernel gave a wrong answer or is not there, 130 when stopped by hand."""
    args = _parser().parse_args(argv)
    if native.library.MISSING:
        print(f"engine 'native': {native.library.MISSING}", file=sys.stderr)
        return 1
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.isa:
        native.force_isa(args.isa)
    wanted = [case for case in cases() if args.cases.lower() in case.title.lower()]
    if args.quick:
        wanted = [case for case in wanted if case.q_len <= QUICK_LENGTH]
    if not wanted:
        print(f"--cases: no title has {args.cases!r} in it. There are:", *(case.title for case in cases()), sep="\n")
        return 2
    rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
    start, neighbours, outcomes, was_stopped = time.monotonic(), Neighbours(), [], False
    peaks = {dtype: peak(dtype, patience_s=args.patient) for dtype in {case.dtype for case in wanted}}
    try:
        for number, case in enumerate(wanted, 1):
            print(f"[{number}/{len(wanted)}] {case.title}", file=sys.stderr, flush=True)
            outcomes += measure(case, rounds=rounds, patience_s=args.patient)
    except KeyboardInterrupt:
        print("stopped; what was finished follows", file=sys.stderr)
        was_stopped = True
    # Once more at the end: a busy moment at the start would make every share of the peak too large.
    peaks = {dtype: max(before, peak(dtype, patience_s=args.patient)) for dtype, before in peaks.items()}
    share, loud = neighbours.share(), sum(each.taken.loud for each in outcomes)
    taken = sum(len(each.taken.samples[OURS]) for each in outcomes if not each.fault)
    machine = results.Machine.here(CPU)
    about = [
        *machine.lines(torch.get_num_threads()),
        f"instruction set {native.isa()}; of those here: {', '.join(native.isas())}",
        "peak of a matrix product: " + ", ".join(f"{NAMES[d]} {peaks[d]:.0f} GFLOP/s" for d in sorted(peaks, key=str)),
        f"{rounds} rounds, {loud} of {taken} were disturbed by other programs"
        + ": DO NOT TRUST these times" * (4 * loud > taken)
        + f"; it took {time.monotonic() - start:.0f} s",
        *([f"other programs used {100 * share:.0f} % of the processors meanwhile"] if share is not None else []),
    ]
    tables = [table_of(outcomes, direction, peaks) for direction in (FORWARD, TRAINING)]
    tables = [table for table in tables if table.rows]
    print(*about, sep="\n")
    for table in tables:
        print()
        table.show()
    judged = [each.verdict() for each in outcomes if each.case.at_least.get(each.direction)]
    summary = f"targets met: {sum(word.startswith('met') for word in judged)} of {len(judged)}"
    print("", summary, sep="\n")
    if not (args.quick or args.cases or args.no_save or was_stopped):
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-native")
        parts = [f"# The CPU kernel, {date.today().isoformat()}", "\n".join(f"- {line}" for line in [*about, summary])]
        results.write(path, "\n\n".join([*parts, *(table.markdown() for table in tables)]) + "\n")
        print(f"\nkept in bench/results/{path.name}")
    return 130 if was_stopped else int(any(each.fault for each in outcomes))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench native", description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--quick", action="store_true", help=f"lengths up to {QUICK_LENGTH}, {QUICK_ROUNDS} rounds; keeps no file")
    add("--cases", default="", metavar="WORDS", help='only cases with these words in their title, "decode bf16" say')
    add("--rounds", type=int, help=f"default {ROUNDS}; long cases take a third")
    add("--threads", type=int, help="threads of torch, and so of the kernel (default: torch's own choice)")
    add("--isa", choices=native.library.ISAS, help="force an instruction set")
    add("--patient", type=int, nargs="?", const=300, default=0, metavar="SECONDS",
        help="wait so long for other programs to be quiet")  # fmt: skip
    add("--no-save", action="store_true", help="keep no file in bench/results/")
    return parser


if __name__ == "__main__":
    sys.exit(main())
