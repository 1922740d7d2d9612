"""Statistics of attention on a GPU, compared with the forward pass of cuDNN or FlashAttention at growing lengths.

"Plain PyTorch" is the pass that runs where the Triton kernels cannot.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bench.harness import Call, Case, Contestant, Ready, Report, Suite, Task, any_wrong, outcomes_of
from bench.suites.statistics import OURS, table_of
from rearview import Mask, causal, window
from rearview.attention import statistics
from rearview.attention.call import Call as AttentionCall
from rearview.attention.stats import gpu, portable

FUSED, STRIPS = "fused forward, causal", "the same sums, plain PyTorch"
HEADS, ROUNDS, QUICK_ROUNDS, QUICK_LENGTH = 16, 9, 3, 8192
# Beyond this, plain PyTorch takes seconds per call.
LONGEST_STRIPS = 32768


@dataclass(frozen=True)
class Inputs:
    """Batch 1, 16 heads."""

    name: str
    length: int
    dim: int
    mask: Mask
    dtype: torch.dtype = torch.bfloat16

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        generator = torch.Generator(device).manual_seed(0)
        shape = (1, HEADS, self.length, self.dim)
        query, key = (torch.randn(shape, generator=generator, device=device).to(self.dtype) for _ in range(2))
        return query, key


INPUTS = (
    *(Inputs(f"causal, {length:,}, dim {dim}", length, dim, causal()) for length in (2048, 8192) for dim in (64, 128)),
    Inputs("causal, window 1024, 8,192, dim 64", 8192, 64, causal() & window(1024)),
    Inputs("causal, 8,192, dim 64, float32", 8192, 64, causal(), torch.float32),
    *(Inputs(f"causal, {length:,}, dim 64", length, 64, causal()) for length in (32768, 131072)),
)


def disagreement(inputs: Inputs, query: Tensor, key: Tensor) -> str:
    """Where the kernels differ from plain PyTorch, or "". Lengths where that takes too long are not compared."""
    if inputs.length > LONGEST_STRIPS:
        return ""
    call = AttentionCall.of(query, key, key, mask=inputs.mask)
    ours, theirs = (each.compute_sums(call, -(-inputs.length // 64), 0) for each in (gpu, portable))
    for name in ("lse", "entropy", "received", "map", "distance"):
        found, wanted = getattr(ours, name), getattr(theirs, name)
        if not torch.allclose(found, wanted, rtol=1e-3, atol=1e-4 * max(1.0, float(wanted.abs().max()))):
            return f"{name} differs"
    return ""


def contestants(inputs: Inputs, device: torch.device) -> list[Contestant]:
    query, key = inputs.tensors(device)
    call = AttentionCall.of(query, key, key, mask=inputs.mask)
    calls: dict[str, Call] = {
        OURS: lambda: statistics(query, key, mask=inputs.mask),
        FUSED: lambda: scaled_dot_product_attention(query, key, key, is_causal=True),
    }
    if inputs.length <= LONGEST_STRIPS:
        calls[STRIPS] = lambda: portable.compute_sums(call, -(-inputs.length // 64), 0)
    faults = {OURS: partial(disagreement, inputs, query, key)}
    return [Contestant(name, partial(Ready, call, faults.get(name, str))) for name, call in calls.items()]


class StatisticsGpuSuite(Suite):
    name, title, suffix = "statistics_gpu", "Statistics of attention on a GPU", "-statistics"

    def device(self, args: argparse.Namespace) -> torch.device:
        return torch.device("cuda")

    def missing(self, args: argparse.Namespace) -> str:
        return "" if torch.cuda.is_available() else "torch finds no GPU here"

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        rounds = args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS)
        wanted = [each for each in INPUTS if each.length <= QUICK_LENGTH or not args.quick]
        return [Case(each.name, partial(contestants, each, self.device(args)), rounds=rounds) for each in wanted]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        about = [f"batch 1, {HEADS} heads, bfloat16 unless said"]
        return Report(about, [("", table_of(outcomes))], is_wrong=any_wrong(outcomes))


SUITES = (StatisticsGpuSuite(),)
