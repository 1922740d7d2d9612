"""Train mode: the suffix swap with seeded dropout and with gradients. Some models drop their mask there.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import train_mode
>>> from rearview.auditing.context import AuditContext
>>> model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Dropout(0.5))
>>> train_mode.run(AuditContext.of(model, torch.randn(1, 8, 3), causal())).check.status
'passed'

Batch normalization hears every position in train mode. For a model that was given in train mode that is a leak; for one
that was given in eval mode it is a condition of the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from rearview.auditing.checks.suffix_swap import outcome, swapped
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.probe import Prober
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.reporting.report import Check

NAME = "train mode"


def run(context: AuditContext) -> Outcome:
    model = context.subject.model
    if not isinstance(model, nn.Module):
        return Outcome(Check(NAME, "skipped", "a function has no train mode"))
    if context.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{context.contract.mask!r} forbids nothing at this length"))
    if not _has_modes(model):
        return Outcome(Check(NAME, "skipped", "the model has one mode only"))
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    with in_training(model):
        found = _searched(context)
        if found.leak is None or not norms or context.subject.given_training:
            return found
        # Find out whether batch normalization alone is the cause.
        for norm in norms:
            norm.eval()
        without = _searched(context)
    if without.leak is not None:
        return without
    kinds = ", ".join(sorted({type(norm).__name__ for norm in norms}))
    context.conditions.append(
        f"it holds in eval mode: in train mode {kinds} takes its statistics over all positions and batch items"
    )
    why = f"{kinds} hears every position in train mode, but the model was given in eval mode"
    return Outcome(
        Check(NAME, "inconclusive" if without.check.status != "passed" else "passed", why, without.check.numbers)
    )


def _searched(context: AuditContext) -> Outcome:
    subject = replace(context.subject, training=True, restores_values=True)
    try:
        same = torch.equal(subject.run().nan_to_num(0.0), subject.run().nan_to_num(0.0))
    except Exception as error:
        # The model may raise anything in a mode that it was not written for.
        return Outcome(Check(NAME, "skipped", f"the model does not run in train mode: {brief(error)}"))
    if not same:
        return Outcome(Check(NAME, "inconclusive", "two runs with the same seed differ in train mode"))
    # Dropout draws for the whole batch at once, so each row must keep its place in the batch.
    found = swapped(
        context, check=NAME, draws=2 if context.full else 1, prober=Prober(subject, alone=not context.batched)
    )
    return outcome(NAME, found, "with dropout seeded")


def _has_modes(model: nn.Module) -> bool:
    try:
        model.train(model.training)
    except NotImplementedError:
        # An exported program.
        return False
    return True


@contextmanager
def in_training(model: nn.Module) -> Iterator[None]:
    """Put a model into train mode, and restore the mode of every module on exit."""
    was = [(module, module.training) for module in model.modules()]
    model.train()
    try:
        yield
    finally:
        for module, training in was:
            module.training = training
