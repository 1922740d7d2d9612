"""Backends and precisions: the same model on other attention kernels, and in bfloat16, held to the same contract.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import backends
>>> from rearview.audit.trial import Trial
>>> backends.run(Trial.of(torch.nn.Linear(3, 3), torch.randn(2, 8, 3), causal(), full=True)).check.status
'passed'

On each of them the suffix swap is repeated, bit for bit; and in the precision of the model they must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rearview.audit.checks.swap import outcome, swapped
from rearview.audit.forms import DRAWS, Compared, compare_forms
from rearview.audit.noise import brief, cast, output_dtype
from rearview.audit.report import Check
from rearview.audit.state import twin_of
from rearview.audit.subject import Subject
from rearview.audit.trial import Outcome, Trial
from rearview.audit.twins import MOST_PARAMETERS

NAME = "backends"
NAME_PRECISION = "precision"
IMPLEMENTATIONS = ("eager", "sdpa")
# From a model to the context in which it runs on the backend.
Make = Callable[[Any], Any]
KERNELS = (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION)


def run(trial: Trial) -> Outcome:
    """Every implementation of attention that the model or torch has, against the usual one."""
    subject = trial.subject
    tried: list[str] = []
    numbers: dict[str, float | int | str | bool] = {}
    for name, make in _backends(subject):
        other = _on(subject, make)
        try:
            searched = swapped(trial, check=NAME, draws=1, prober=trial.prober_for(other))
            found = _compared(trial, make, name)
        except Exception as error:
            numbers[name] = f"not taken: {brief(error)}"
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
        return Outcome(Check(NAME, "skipped", "no other backend takes it", numbers))
    return Outcome(Check(NAME, "passed", f"the same on {', '.join(tried)}", numbers))


def run_precision(trial: Trial) -> Outcome:
    """The suffix swap in bfloat16: a mask that holds in one precision may not hold in another."""
    subject = trial.subject
    if not isinstance(subject.model, nn.Module) or output_dtype(subject) == torch.bfloat16:
        why = "it is in bfloat16 already" if isinstance(subject.model, nn.Module) else "a function has no precision"
        return Outcome(Check(NAME_PRECISION, "skipped", why))
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(NAME_PRECISION, "skipped", f"a copy of {subject.parameters:,} parameters is too large"))
    try:
        half = subject.with_model(twin_of(subject.model).bfloat16())
        half = replace(half, inputs=cast(subject.inputs, torch.bfloat16), x=cast(subject.x, torch.bfloat16))
        if not bool(half.run().isfinite().all()):
            return Outcome(Check(NAME_PRECISION, "inconclusive", "in bfloat16 the outputs are not finite"))
        found = swapped(trial, check=NAME_PRECISION, draws=2, prober=trial.prober_for(half))
    except Exception as error:
        return Outcome(Check(NAME_PRECISION, "skipped", f"it does not run in bfloat16: {brief(error)}"))
    return outcome(NAME_PRECISION, found, "in bfloat16")


def _on(subject: Subject, make: Make) -> Subject:
    """The subject on another backend."""
    return replace(subject, around=_Entered(lambda: make(subject.model)))


def _compared(trial: Trial, make: Make, name: str) -> Compared:
    """The outputs on another backend, in float64 too where that is needed, against the usual ones."""
    if trial.random:
        return Compared(True, False, DRAWS)
    return compare_forms(trial, trial.subject, name, lambda given: _on(given, make).run())


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
    """A context that is made anew each time that it is entered."""

    def __init__(self, make: Callable[[], Any]):
        self.make = make
        self.inner: Any = nullcontext()

    def __enter__(self) -> None:
        self.inner = self.make()
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
