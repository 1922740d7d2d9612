"""The numbers that this project promises on a CPU, met or not in this run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from bench.cases import BASE_CPU, Case
from bench.measure import TRAINING, Outcome
from bench.rivals import AUTO, DENSE, PLAIN


@dataclass(frozen=True)
class Target:
    """`rearview auto`, forward and backward, at least so many times faster than `rival`."""

    case: str
    rival: str
    at_least: float
    remark: str = ""


TARGETS = (
    Target("documents", DENSE, 4.0),
    Target("window", DENSE, 3.0),
    Target("causal", PLAIN, 0.95, remark='"no slower": 0.95 counts, for the noise'),
)


@dataclass(frozen=True)
class Checked:
    """`came` is None when this run says nothing about the target, and `why` says why."""

    target: Target
    came: float | None
    why: str = ""

    @property
    def verdict(self) -> str:
        if self.came is None:
            return "not judged"
        return "met" if self.came >= self.target.at_least else "NOT MET"

    def __str__(self) -> str:
        number = self.why if self.came is None else f"{self.came:.2f}x"
        remark = f" ({self.target.remark})" if self.target.remark else ""
        what = f"{self.target.case}, {TRAINING}, {AUTO} against {self.target.rival}"
        return f"{self.verdict}: {what}: {number}, asked {self.target.at_least:g}x{remark}"


def check(outcomes: Sequence[Outcome], *, device: torch.device, dtype: torch.dtype) -> list[Checked]:
    """Each target with its number. They are stated for one size, on a CPU, in float32."""
    return [_checked(target, outcomes, device, dtype) for target in TARGETS]


def _checked(target: Target, outcomes: Sequence[Outcome], device: torch.device, dtype: torch.dtype) -> Checked:
    stated = f"{BASE_CPU}, float32, on a CPU"
    found = [each for each in outcomes if each.case.name == target.case and each.direction == TRAINING]
    if not found:
        return Checked(target, None, "the case did not run")
    if device.type != "cpu" or dtype != torch.float32 or not _has_stated_size(found[0].case):
        return Checked(target, None, f"it is stated for {stated}")
    came = found[0].times_faster(AUTO, than=target.rival)
    return Checked(target, came, "" if came is not None else "one of the two was not timed")


def _has_stated_size(case: Case) -> bool:
    base = (BASE_CPU.batch, BASE_CPU.heads, BASE_CPU.length, BASE_CPU.length, BASE_CPU.dim)
    return (case.batch, case.heads, case.q_len, case.k_len, case.dim) == base
