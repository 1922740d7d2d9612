"""Backends and precisions: the same model on other attention kernels, and in bfloat16, under the same contract.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import backends
>>> from rearview.auditing.context import AuditContext
>>> backends.run(AuditContext.of(torch.nn.Linear(3, 3), torch.randn(2, 8, 3), causal(), full=True)).check.status
'passed'

On each of them the suffix swap is repeated, bit for bit; and in the precision of the model their outputs must agree.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rearview.auditing.checks.suffix_swap import outcome, swapped
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.equivalence import DRAWS, Compared, compare_forms
from rearview.auditing.evidence.rounding import brief, cast, output_dtype
from rearview.auditing.model.reinitialization import MOST_PARAMETERS
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check

NAME = "backends"
NAME_PRECISION = "precision"
IMPLEMENTATIONS = ("eager", "sdpa")
# From a model to the context manager under which it runs on the backend.
Make = Callable[[Any], Any]
KERNELS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def run(context: AuditContext) -> Outcome:
    """Compare every implementation of attention that the model or torch has with the usual one."""
    subject = context.subject
    tried: list[str] = []
    numbers: dict[str, float | int | str | bool] = {}
    for name, make in _backends(subject):
        other = _on(subject, make)
        try:
            searched = swapped(context, check=NAME, draws=1, prober=context.prober_for(other))
            found = _compared(context, make, name)
        except Exception as error:
            # The model may raise anything on a backend that it was not written for.
            numbers[name] = f"does not run: {brief(error)}"
            continue
        tried.append(name)
        numbers[name] = found.amount
        if searched.leak is not None or searched.unclear:
            answer = outcome(NAME, searched, f"with {name}")
            check = replace(answer.check, why=f"{name}: {answer.check.why}", numbers=numbers)
            return Outcome(check, answer.leak)
        if found.differ:
            return Outcome(
                Check(NAME, "failed", f"{found.why} from the usual backend", numbers), found.leak(NAME, subject)
            )
        if not found.same:
            return Outcome(Check(NAME, "inconclusive", found.why, numbers))
    if not tried:
        return Outcome(Check(NAME, "skipped", "the model runs on no other backend", numbers))
    return Outcome(Check(NAME, "passed", f"the outputs agree on {', '.join(tried)}", numbers))


def run_precision(context: AuditContext) -> Outcome:
    """Repeat the suffix swap in bfloat16: a mask that holds in one precision may not hold in another."""
    subject = context.subject
    if not isinstance(subject.model, nn.Module) or output_dtype(subject) == torch.bfloat16:
        why = (
            "the model is in bfloat16 already"
            if isinstance(subject.model, nn.Module)
            else "a function has no parameters to convert"
        )
        return Outcome(Check(NAME_PRECISION, "skipped", why))
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(
            Check(NAME_PRECISION, "skipped", f"a copy of {subject.parameters:,} parameters would be too large")
        )
    try:
        half = subject.with_model(copy.deepcopy(subject.model).bfloat16())
        half = replace(half, inputs=cast(subject.inputs, torch.bfloat16), x=cast(subject.x, torch.bfloat16))
        if not bool(half.run().isfinite().all()):
            return Outcome(Check(NAME_PRECISION, "inconclusive", "in bfloat16 the outputs are not finite"))
        found = swapped(context, check=NAME_PRECISION, draws=2, prober=context.prober_for(half))
    except Exception as error:
        # The model may raise anything in a precision that it was not written for.
        return Outcome(Check(NAME_PRECISION, "skipped", f"the model does not run in bfloat16: {brief(error)}"))
    return outcome(NAME_PRECISION, found, "in bfloat16")


def _on(subject: Subject, make: Make) -> Subject:
    """The subject on another backend."""
    return replace(subject, around=_Entered(lambda: make(subject.model)))


def _compared(context: AuditContext, make: Make, name: str) -> Compared:
    """Compare the outputs on another backend with the usual ones."""
    if context.random:
        return Compared(True, False, DRAWS)
    return compare_forms(context, context.subject, name, lambda given: _on(given, make).run())


def _backends(subject: Subject) -> Iterator[tuple[str, Make]]:
    model = subject.model
    usual = getattr(getattr(model, "config", None), "_attn_implementation", None)
    if usual in IMPLEMENTATIONS and hasattr(model, "set_attn_implementation"):
        for name in IMPLEMENTATIONS:
            if name != usual:
                yield f"attention {name}", lambda given, name=name: _implementation(given, name, usual)
    for kernel in KERNELS if subject.x.is_cuda else KERNELS[:1]:
        yield f"SDPA {kernel.name.lower().replace('_', ' ')}", lambda given, kernel=kernel: sdpa_kernel(kernel)


@contextmanager
def _implementation(model: Any, name: str, usual: str) -> Iterator[None]:
    model.set_attn_implementation(name)
    try:
        yield
    finally:
        model.set_attn_implementation(usual)


class _Entered:
    """A context manager that is created again each time it is entered."""

    def __init__(self, make: Callable[[], Any]):
        self.make = make
        self.inner: Any = nullcontext()

    def __enter__(self) -> None:
        self.inner = self.make()
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
