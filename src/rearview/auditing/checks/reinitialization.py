"""Redrawn parameters: a path that is closed by zeros now may open after one training step.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import reinitialization
>>> from rearview.auditing.context import AuditContext
>>> class Peeks(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.gate = torch.nn.Parameter(torch.zeros(1))
...     def forward(self, x):
...         return x + self.gate * x.mean(1, keepdim=True)
>>> reinitialization.run(AuditContext.of(Peeks(), torch.randn(1, 8), causal())).check.status
'failed'
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from rearview.auditing.checks.self_tests import liveness
from rearview.auditing.checks.suffix_swap import outcome, swapped
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.probe import Prober
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.reinitialization import MOST_PARAMETERS, Which, reinitialized, zero_gates
from rearview.auditing.reporting.report import Check, Hears
from rearview.drawing.cells import counted

NAME = "redrawn zeros"
NAME_ALL = "redrawn weights"


def run(context: AuditContext) -> Outcome:
    """Repeat the suffix swap on a copy in which the all-zero parameters are drawn again."""
    model = context.subject.model
    gates = zero_gates(model)
    if not isinstance(model, nn.Module):
        return Outcome(Check(NAME, "skipped", "a function has no parameters"))
    if not gates:
        return Outcome(Check(NAME, "skipped", "no parameter that could close a path is all zero"))
    example = gates[0] if len(gates) == 1 else f"for example {gates[0]}"
    many = f"{counted(len(gates), 'parameter is', 'parameters are')} all zero, {example}"
    found = _searched(context, NAME, "zeros", f"in a copy with zeros redrawn ({many})")
    if found.check.status == "passed":
        context.conditions.append(f"{many}; a copy with zeros redrawn was audited too")
    return found


def run_all(context: AuditContext) -> Outcome:
    """Repeat the suffix swap on copies with all parameters drawn again: dead units may be alive at other weights."""
    if not isinstance(context.subject.model, nn.Module) or not context.subject.parameters:
        return Outcome(Check(NAME_ALL, "skipped", "the model has no parameters"))
    found = Outcome(Check(NAME_ALL, "skipped", ""))
    for n in range(3):
        found = _searched(
            context, NAME_ALL, "all", "in copies with all parameters redrawn", seed=context.subject.seed + n
        )
        if found.leak is not None:
            return found
    return found


def _searched(context: AuditContext, name: str, which: Which, where: str, seed: int | None = None) -> Outcome:
    subject, seed = context.subject, context.subject.seed if seed is None else seed
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(name, "skipped", f"a copy of {subject.parameters:,} parameters would be too large"))
    try:
        copied = subject.with_model(reinitialized(subject.model, which, seed=seed))
        if not bool(copied.run().isfinite().all(-1).cpu()[subject.real].all()):
            return Outcome(Check(name, "skipped", "with redrawn parameters the outputs are not finite"))
    except Exception as error:
        # Copying and running with other weights is the model's own code, which may raise anything.
        return Outcome(Check(name, "skipped", f"the model cannot be copied: {brief(error)}"))
    prober = context.prober_for(copied)
    found = swapped(context, check=name, draws=1, prober=prober)
    answer = outcome(name, found, where)
    if answer.leak is not None:
        return replace(answer, leak=replace(answer.leak, weights=f"{which} redrawn, seed {seed}"))
    return replace(
        answer, check=replace(answer.check, numbers={**answer.check.numbers, "near": _alive(context, prober)})
    )


def _alive(context: AuditContext, prober: Prober) -> bool:
    """Whether positions hear others in the copy."""
    time, item = context.subject.time, context.items[0]
    chosen = sorted({0, time // 2, max(0, time - 2), time - 1})
    changed = torch.zeros(len(chosen), time, dtype=torch.bool)
    changed[torch.arange(len(chosen)), torch.tensor(chosen)] = True
    moved = prober.change(changed, context.generator, item=item)
    hears = Hears(moved.amounts.T, context.contract.forbidden[item][:, chosen], tuple(chosen))
    return bool(liveness(hears).numbers.get("near"))
