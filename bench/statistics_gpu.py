"""Statistics of attention on a GPU: what one pass costs against cuDNN's or FlashAttention's forward, as lengths grow.

    python -m bench statistics_gpu              # 9 rounds; up to 131,072 tokens
    python -m bench statistics_gpu --quick      # 3 rounds, up to 8,192; keeps no file

"Plain PyTorch" is the pass that runs where the Triton kernels cannot. Nobody is timed before the two agree.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from statistics import median

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench import results
from bench.measure import Call, interleaved
from bench.statistics import times
from bench.table import Table
from rearview import Mask, causal, window
from rearview.attention import statistics
from rearview.attention.request import Request
from rearview.attention.statistics import gpu
from rearview.attention.statistics.strip_sums import sums_by_strips

OURS, FUSED, STRIPS = "rearview statistics", "fused forward, causal", "the same sums, plain PyTorch"
HEADS, ROUNDS, QUICK_ROUNDS = 16, 9, 3
# Beyond this, plain PyTorch takes seconds a call.
LONGEST_STRIPS = 32768


@dataclass(frozen=True)
class Case:
    """Batch 1, 16 heads."""

    name: str
    length: int
    dim: int
    mask: Mask
    dtype: torch.dtype = torch.bfloat16

    def inputs(self, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(0)
        shape = (1, HEADS, self.length, self.dim)
        query, key = (torch.randn(shape, generator=generator, device=device).to(self.dtype) for _ in range(2))
        return query, key


CASES = (
    *(Case(f"causal, {length:,}, dim {dim}", length, dim, causal()) for length in (2048, 8192) for dim in (64, 128)),
    Case("causal, window 1024, 8,192, dim 64", 8192, 64, causal() & window(1024)),
    Case("causal, 8,192, dim 64, float32", 8192, 64, causal(), torch.float32),
    *(Case(f"causal, {length:,}, dim 64", length, 64, causal()) for length in (32768, 131072)),
)


def disagreement(case: Case, query: Tensor, key: Tensor) -> str:
    """Where the kernels differ from plain PyTorch; empty when nowhere."""
    request = Request.of(query, key, key, mask=case.mask)
    ours, theirs = (run(request, None, -(-case.length // 64)) for run in (gpu.sums_on_gpu, sums_by_strips))
    for name in ("lse", "entropy", "received", "map", "distance"):
        found, wanted = getattr(ours, name), getattr(theirs, name)
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * max(1.0, float(wanted.abs().max()))):
            return f"{case.name}: {name} differs"
    return ""


def contestants(case: Case, query: Tensor, key: Tensor) -> dict[str, Call]:
    request = Request.of(query, key, key, mask=case.mask)
    calls: dict[str, Call] = {
        OURS: lambda: statistics(query, key, mask=case.mask),
        FUSED: lambda: scaled_dot_product_attention(query, key, key, is_causal=True),
    }
    if case.length <= LONGEST_STRIPS:
        calls[STRIPS] = lambda: sums_by_strips(request, None, -(-case.length // 64))
    return calls


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 1 when a figure is wrong, 2 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench statistics_gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_ROUNDS} rounds, up to 8,192; keeps no file")
    parser.add_argument("--no-save", action="store_true", help="keep no file in bench/results/")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("torch finds no GPU here", file=sys.stderr)
        return 2
    device, rows = torch.device("cuda"), []
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    for case in CASES:
        if args.quick and case.length > 8192:
            continue
        print(f"{case.name} ...", file=sys.stderr)
        query, key = case.inputs(device)
        if case.length <= LONGEST_STRIPS and (wrong := disagreement(case, query, key)):
            print("WRONG:", wrong)
            return 1
        with torch.no_grad():
            samples = interleaved(contestants(case, query, key), rounds=rounds, device=device, at_least_ms=5.0).samples
        for name, taken in samples.items():
            ratio = "" if name == OURS else f"{times(samples, name):.2f}"
            rows.append((case.name if name == OURS else "", name, f"{median(taken):.2f}", ratio))
    machine = results.Machine.here(device)
    about = [*machine.lines(torch.get_num_threads()), f"batch 1, {HEADS} heads, bfloat16 unless said; {rounds} rounds"]
    table = Table(("case", "contestant", "ms", "statistics take, of it"), rows)
    print(*about, "", sep="\n")
    table.show()
    if not (args.quick or args.no_save):
        path = results.RESULTS / results.file_name(machine, today=date.today(), suffix="-statistics")
        title = f"Statistics of attention on a GPU, {date.today().isoformat()}"
        results.write(path, f"# {title}\n\n" + "\n".join(f"- {line}" for line in about) + f"\n\n{table.markdown()}\n")
        print(f"\nkept in bench/results/{path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
