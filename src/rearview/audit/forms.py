"""The same call in another form: do two ways that should give the same outputs give the same?

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.forms import compare_forms
>>> from rearview.audit.trial import Trial
>>> trial = Trial.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal())
>>> compare_forms(trial, trial.subject, "in halves", lambda subject: subject.run() + 1).why
'in halves: position 0 differs by 1'

Shapes and kernels differ between forms, so rounding is allowed for: float64 tells it from a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rearview.audit.leak import Leak
from rearview.audit.noise import brief, in_double, output_dtype
from rearview.audit.probe import difference, scale_of
from rearview.audit.subject import Subject
from rearview.audit.ties import TIES, first_of_equals
from rearview.audit.trial import Trial
from rearview.errors import Unsupported

# Rounding between two forms is at most about this share of an ordinary output, a large one times three.
ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# In float64 a difference that is real keeps at least this share of its size.
KEEPS = 0.1

DRAWS = "the model draws random numbers, and draws others for another shape"

Form = Callable[[Subject], Tensor]


class Compared(NamedTuple):
    same: bool
    """The outputs agree, up to rounding."""
    differ: bool
    """They do not, and it is not rounding. When neither holds, nobody knows: `why` says so."""
    why: str
    amount: float = 0.0
    query: int = 0
    item: int = 0

    def leak(self, check: str, subject: Subject, *, source: int = 0) -> Leak:
        return Leak.of_form(check, subject, query=self.query, source=source, item=self.item, amount=self.amount)


def compare_forms(
    trial: Trial, subject: Subject, name: str, form: Form, usual: Form | None = None, watched: Tensor | None = None
) -> Compared:
    """`form` against `usual`, the plain run unless given, at the watched positions, bool [batch, time].

    Raises what the model raises when it does not take the form.
    """
    if trial.random:
        raise Unsupported(f"{name} against the usual form", [DRAWS])
    usual = usual or Subject.run
    before, after = usual(subject), form(subject)
    watched = subject.real if watched is None else watched
    amounts = difference(before, after)[0].masked_fill(~watched, 0.0)
    amount = float(amounts.max())
    item, query = divmod(int(amounts.argmax()), amounts.shape[1])
    limit = ROUNDING.get(output_dtype(subject), 1e-4) * max(scale_of(before), 1e-12)
    if amount <= limit:
        return Compared(True, False, f"{name}: the same outputs, within {amount:.2g}", amount)
    found = f"{name}: position {query} differs by {amount:.3g}"
    with first_of_equals():
        tied = float(difference(usual(subject), form(subject))[0].masked_fill(~watched, 0.0).max())
    if tied <= limit:
        trial.conditions.append(f"{TIES}: {found}")
        return Compared(True, False, f"{name}: the same outputs, but for ties of top-k", amount)
    double = trial.judge_for(subject).double()
    if isinstance(double, str):
        # Without float64 only what is far above rounding counts.
        clear = amount > 50 * limit
        return Compared(False, clear, found if clear else f"{found}; {double}", amount, query, item)
    try:
        left = in_double(lambda: difference(usual(double), form(double))[0].masked_fill(~watched, 0.0).max())
    except Exception as error:
        clear = amount > 50 * limit
        return Compared(
            False, clear, found if clear else f"{found}; float64 failed: {brief(error)}", amount, query, item
        )
    if float(left) < KEEPS * amount:
        return Compared(True, False, f"{name}: the same outputs; {amount:.2g} is rounding", amount)
    return Compared(False, True, found, amount, query, item)
