"""Train mode: the suffix swap once more with dropout on, seeded alike, and gradients on. Some masks are dropped there.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import training
>>> from rearview.audit.trial import Trial
>>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
>>> training.run(Trial.of(model, torch.randn(1, 8, 3), causal())).check.status
'passed'

Batch normalisation hears everyone in train mode. For a model that was given in train mode that is a leak; for one that
was given in eval mode it is a condition of the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rearview.audit.checks.swap import outcome, swapped
from rearview.audit.noise import brief
from rearview.audit.probe import Prober
from rearview.audit.report import Check
from rearview.audit.state import Buffers
from rearview.audit.trial import Outcome, Trial

NAME = "train mode"


def run(trial: Trial) -> Outcome:
    model = trial.subject.model
    if not isinstance(model, nn.Module):
        return Outcome(Check(NAME, "skipped", "a function has no train mode"))
    if trial.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{trial.contract.mask!r} forbids nothing at this length"))
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    with in_training(model):
        found = _searched(trial)
        if found.leak is None or not norms or trial.subject.given_training:
            return found
        # Is it the batch normalisation alone?
        for norm in norms:
            norm.eval()
        without = _searched(trial)
    if without.leak is not None:
        return without
    kinds = ", ".join(sorted({type(norm).__name__ for norm in norms}))
    trial.conditions.append(f"eval mode: in train mode {kinds} mixes the statistics of all positions and batch items")
    why = f"{kinds} hears every position in train mode; the model was given in eval mode"
    return Outcome(
        Check(NAME, "inconclusive" if without.check.status != "passed" else "passed", why, without.check.numbers)
    )


def _searched(trial: Trial) -> Outcome:
    subject = replace(trial.subject, training=True, buffers=trial.subject.buffers or Buffers(trial.subject.model))
    try:
        same = torch.equal(subject.run().nan_to_num(0.0), subject.run().nan_to_num(0.0))
    except Exception as error:
        return Outcome(Check(NAME, "skipped", f"the model does not run in train mode: {brief(error)}"))
    if not same:
        return Outcome(Check(NAME, "inconclusive", "two runs with the same seed differ in train mode"))
    # Dropout draws for the whole batch at once: the rows must stand where they stood.
    found = swapped(trial, check=NAME, draws=2 if trial.full else 1, prober=Prober(subject, alone=not trial.batched))
    return outcome(NAME, found, "with dropout seeded")


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Train mode inside; every module as it was after."""
    was = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, training in was:
            module.training = training
