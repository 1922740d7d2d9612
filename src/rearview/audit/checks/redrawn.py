"""Redrawn parameters: a path that is closed by a zero today is open after one step of training.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import redrawn
>>> from rearview.audit.trial import Trial
>>> class Peeks(torch.nn.Module):
...     def __init__(self):
...         super().__init__()
...         self.gate = torch.nn.Parameter(torch.zeros(1))
...     def forward(self, x):
...         return x + self.gate * x.mean(1, keepdim=True)
>>> redrawn.run(Trial.of(Peeks(), torch.randn(1, 8), causal())).check.status
'failed'
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from rearview.audit.checks import liveness
from rearview.audit.checks.swap import outcome, swapped
from rearview.audit.noise import brief
from rearview.audit.report import Check, Hears
from rearview.audit.trial import Outcome, Trial
from rearview.audit.twins import MOST_PARAMETERS, Kind, redrawn, zero_gates
from rearview.masks.labels import counted

NAME = "redrawn zeros"
NAME_ALL = "redrawn weights"


def run(trial: Trial) -> Outcome:
    """The parameters that are all zero and close a path, drawn anew in a copy; in full also the zero biases."""
    model = trial.subject.model
    gates = zero_gates(model)
    if not isinstance(model, nn.Module):
        return Outcome(Check(NAME, "skipped", "a function has no parameters"))
    if not gates:
        return Outcome(Check(NAME, "skipped", "no parameter that closes a path is zero"))
    many = counted(len(gates), "parameter is", "parameters are")
    found = _asked(trial, NAME, "zeros", f"in a copy where zeros are redrawn ({many} all zero, as {gates[0]})")
    if found.check.status == "passed":
        trial.conditions.append(f"{many} all zero, as {gates[0]}: a copy with them redrawn was audited too")
    return found


def run_all(trial: Trial) -> Outcome:
    """Every parameter drawn anew: units that are dead at the given weights are alive at others."""
    if not isinstance(trial.subject.model, nn.Module) or not trial.subject.parameters:
        return Outcome(Check(NAME_ALL, "skipped", "there are no parameters"))
    found = Outcome(Check(NAME_ALL, "skipped", ""))
    for n in range(3):
        found = _asked(trial, NAME_ALL, "all", "in copies with all parameters redrawn", seed=trial.subject.seed + n)
        if found.leak is not None:
            return found
    return found


def _asked(trial: Trial, name: str, kind: Kind, where: str, seed: int | None = None) -> Outcome:
    subject, seed = trial.subject, trial.subject.seed if seed is None else seed
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(name, "skipped", f"a copy of {subject.parameters:,} parameters would be too large"))
    try:
        twin = subject.with_model(redrawn(subject.model, kind, seed=seed))
        if not bool(twin.run().isfinite().all(-1).cpu()[subject.real].all()):
            return Outcome(Check(name, "skipped", "with redrawn parameters the outputs are not finite"))
    except Exception as error:
        return Outcome(Check(name, "skipped", f"the model cannot be copied: {brief(error)}"))
    prober = trial.prober_for(twin)
    found = swapped(trial, check=name, draws=1, prober=prober)
    answer = outcome(name, found, where)
    if answer.leak is not None:
        return replace(answer, leak=replace(answer.leak, weights=f"{kind} redrawn, seed {seed}"))
    return replace(answer, check=replace(answer.check, numbers={**answer.check.numbers, "near": _alive(trial, prober)}))


def _alive(trial: Trial, prober) -> bool:
    """Does the past matter in the twin?"""
    time, item = trial.subject.time, trial.items[0]
    chosen = sorted({0, time // 2, max(0, time - 2), time - 1})
    changed = torch.zeros(len(chosen), time, dtype=torch.bool)
    changed[torch.arange(len(chosen)), torch.tensor(chosen)] = True
    moved = prober.change(changed, trial.generator, item=item)
    hears = Hears(moved.amounts.T, trial.contract.forbidden[item][:, chosen], tuple(chosen))
    return bool(liveness.of(hears).numbers.get("near"))
