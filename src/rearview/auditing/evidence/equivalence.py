"""Compare two forms of one call, which should give the same outputs: with a cache and without, padded and not.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.evidence.equivalence import compare_forms
>>> from rearview.auditing.context import AuditContext
>>> context = AuditContext.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal())
>>> compare_forms(context, context.subject, "in halves", lambda subject: subject.run() + 1).why
'in halves: position 0 differs by 1'

Shapes and kernels differ between forms, so rounding is allowed for: float64 tells it from a real difference.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.probe import difference, scale_of
from rearview.auditing.evidence.rounding import brief, in_double, output_dtype
from rearview.auditing.model.dispatch import EveryOp
from rearview.auditing.model.subject import Subject
from rearview.errors import Unsupported

# Rounding between two forms is at most about this fraction of an ordinary output.
ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5, torch.bfloat16: 5e-2, torch.float16: 1e-2}
# A real difference keeps at least this fraction of its size in float64.
KEEPS = 0.1

DRAWS = "the model draws random numbers, which differ between shapes"
TIES = "top-k chooses among equal scores differently at another shape, which hears nothing"

Form = Callable[[Subject], Tensor]


class Compared(NamedTuple):
    same: bool
    """Whether the outputs agree, up to rounding."""
    differ: bool
    """Whether they differ by more than rounding. Where neither holds, it is unclear, and `why` says why."""
    why: str
    amount: float = 0.0
    query: int = 0
    item: int = 0

    def leak(self, check: str, subject: Subject, *, source: int = 0) -> Leak:
        return Leak.of_form(check, subject, query=self.query, source=source, item=self.item, amount=self.amount)


def compare_forms(
    context: AuditContext,
    subject: Subject,
    name: str,
    form: Form,
    usual: Form | None = None,
    watched: Tensor | None = None,
) -> Compared:
    """Compare `form` with `usual`, by default the plain run, at the watched positions, bool [batch, time].

    Raises whatever the model raises where it does not support the form.
    """
    if context.random:
        raise Unsupported(f"{name} against the usual form", [DRAWS])
    usual = usual or Subject.run
    before, after = usual(subject), form(subject)
    watched = subject.real if watched is None else watched
    amounts = difference(before, after)[0].masked_fill(~watched, 0.0)
    amount = float(amounts.max())
    item, query = divmod(int(amounts.argmax()), amounts.shape[1])
    limit = ROUNDING.get(output_dtype(subject), 1e-4) * max(scale_of(before), 1e-12)
    if amount <= limit:
        return Compared(True, False, f"{name}: the outputs agree within {amount:.2g}", amount)
    found = f"{name}: position {query} differs by {amount:.3g}"
    with EarliestOfEqualScores():
        tied = float(difference(usual(subject), form(subject))[0].masked_fill(~watched, 0.0).max())
    if tied <= limit:
        context.conditions.append(f"{TIES}: {found}")
        return Compared(True, False, f"{name}: the outputs agree except for ties in top-k", amount)
    double = context.judge_for(subject).double()
    if isinstance(double, str):
        # Without float64 only a difference far above rounding counts.
        clear = amount > 50 * limit
        return Compared(False, clear, found if clear else f"{found}; {double}", amount, query, item)
    try:
        left = in_double(lambda: difference(usual(double), form(double))[0].masked_fill(~watched, 0.0).max())
    except Exception as error:
        # The model may raise anything in a precision that it was not written for.
        clear = amount > 50 * limit
        return Compared(
            False, clear, found if clear else f"{found}; float64 failed: {brief(error)}", amount, query, item
        )
    if float(left) < KEEPS * amount:
        return Compared(True, False, f"{name}: the outputs agree; a difference of {amount:.2g} is rounding", amount)
    return Compared(False, True, found, amount, query, item)


class EarliestOfEqualScores(EveryOp):
    """Makes top-k and sort take the earliest of equal scores.

    Which one a kernel takes is up to the kernel, and may change with the length. That is not hearing: a difference that
    is gone under this mode came from ties.

    >>> with EarliestOfEqualScores():
    ...     torch.zeros(5).topk(2).indices.tolist()
    [0, 1]
    """

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten.topk.default:
            return _topk(*args, **kwargs)
        if func is torch.ops.aten.sort.default:
            return _sort(*args, **kwargs)
        return func(*args, **kwargs)


def _sort(x: Tensor, dim: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def _topk(x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Tensor, Tensor]:
    if x.ndim == 0:
        return x, torch.zeros_like(x, dtype=torch.long)
    values, indices = _sort(x, dim, largest)
    return values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
