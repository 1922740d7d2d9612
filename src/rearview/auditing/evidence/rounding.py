"""Tell rounding from a leak: in float64 rounding nearly vanishes, and what a position really hears does not.

>>> import torch
>>> from rearview.auditing.evidence.rounding import Judge
>>> from rearview.auditing.model.subject import Subject
>>> subject = Subject.of(lambda x: x + 1e-9 * x.mean(1, keepdim=True), torch.randn(1, 4))
>>> judge = Judge(subject)
>>> other = subject.x.clone()
>>> other[0, 3] = 30
>>> judge(subject.x, other, watched=torch.tensor([True, True, True, False]), amount=1e-8, scale=1.0).is_leak
True

Most models never need this: without a leak outputs do not change by one bit, and a leak changes them by far more than
rounding. It is for sums whose order depends on values (experts that gather their tokens) and for runs of different
lengths.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rearview.auditing.evidence.probe import difference
from rearview.auditing.model.dispatch import EveryOp
from rearview.auditing.model.inputs import varied_input
from rearview.auditing.model.subject import Subject

# A difference above this fraction of an ordinary output is never rounding.
SURELY = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
# From float32 to float64 rounding shrinks by about 5e8 and a leak stays; what lies between is unclear.
LEAK_KEEPS, NOISE_KEEPS = 0.1, 1e-3
MOST_PARAMETERS = 1 << 30


class Judgement(NamedTuple):
    is_leak: bool
    is_noise: bool
    why: str


@dataclass
class Judge:
    """Judges differences; makes the float64 copy of the model when it is first needed."""

    subject: Subject
    _double: list[Subject | str] = field(default_factory=list)

    def __call__(
        self,
        clean: Tensor,
        other: Tensor,
        *,
        watched: Tensor,
        amount: float,
        scale: float,
        items: Tensor | None = None,
    ) -> Judgement:
        """Judge a difference of `amount` at the watched positions, bool [time] or [rows, time].

        `clean` and `other` are inputs [rows, time, ...] that may differ in length.
        """
        dtype = output_dtype(self.subject)
        if amount > SURELY.get(dtype, 1e-3) * max(scale, 1e-30):
            return Judgement(True, False, f"a difference of {amount:.3g} is far above rounding")
        double = self.double()
        if isinstance(double, str):
            return Judgement(
                False, False, f"a difference of {amount:.3g} may be rounding, and float64 cannot tell: {double}"
            )
        try:
            before, after = (_doubled(double, x, items) for x in (clean, other))
        except Exception as error:
            # The model may raise anything in a precision that it was not written for.
            return Judgement(
                False, False, f"a difference of {amount:.3g} may be rounding, and float64 failed: {brief(error)}"
            )
        length = min(before.shape[1], after.shape[1])
        amounts, _ = difference(before[:, :length], after[:, :length])
        in_double = float(amounts.masked_fill(~watched[..., :length], 0.0).max())
        if in_double >= LEAK_KEEPS * amount:
            return Judgement(True, False, f"a difference of {in_double:.3g} remains in float64")
        if in_double <= NOISE_KEEPS * amount:
            return Judgement(False, True, f"a difference of {amount:.3g} is rounding: in float64 it is {in_double:.3g}")
        return Judgement(
            False,
            False,
            f"a difference of {amount:.3g} becomes {in_double:.3g} in float64: neither rounding nor a leak",
        )

    def double(self) -> Subject | str:
        """The subject in float64, or why it cannot be had."""
        if not self._double:
            self._double.append(self._make())
        return self._double[0]

    def _make(self) -> Subject | str:
        subject = self.subject
        if subject.parameters > MOST_PARAMETERS:
            return f"a copy of {subject.parameters:,} parameters would be too large"
        try:
            model = copy.deepcopy(subject.model).double() if isinstance(subject.model, nn.Module) else subject.model
        except Exception as error:
            # Copying runs the model's own code, which may raise anything.
            return f"the model cannot be copied ({brief(error)})"
        inputs = cast(subject.inputs, torch.float64)
        return replace(subject.with_model(model), inputs=inputs, x=cast(subject.x, torch.float64))


def in_double(run: Callable[[], Tensor]) -> Tensor:
    """Run with float64 as the default dtype: a model creates masks and positions of its own."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with GroupedProductsInDouble():
            return run()
    finally:
        torch.set_default_dtype(default)


class GroupedProductsInDouble(EveryOp):
    """Computes `_grouped_mm` in float64, which torch does not have, as one product per group.

    Mixtures of experts use it; without this, rounding could not be told from a leak in them.

    >>> rows, weights, ends = torch.ones(3, 2).double(), torch.ones(2, 2, 2).double(), torch.tensor([1, 3]).int()
    >>> with GroupedProductsInDouble():
    ...     torch.ops.aten._grouped_mm(rows, weights, ends).tolist()
    [[2.0, 2.0], [2.0, 2.0], [2.0, 2.0]]
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype == torch.float64:
            return _grouped_product(func, *args, **kwargs)
        return func(*args, **kwargs)


def _grouped_product(
    func: Any, rows: Tensor, weights: Tensor, ends: Tensor | None = None, *others: Any, **more: Any
) -> Tensor:
    has_more = any(other is not None for other in (*others, *more.values()))
    if rows.ndim != 2 or weights.ndim != 3 or ends is None or has_more:
        return func(rows, weights, ends, *others, **more)
    # Rows after the last end belong to no group; torch leaves them as they are.
    out = rows.new_zeros(len(rows), weights.shape[-1])
    start = 0
    for group, end in enumerate(ends.tolist()):
        out[start:end] = rows[start:end] @ weights[group]
        start = end
    return out


def _doubled(double: Subject, x: Tensor, items: Tensor | None) -> Tensor:
    return in_double(lambda: double.run(cast(x, torch.float64), items))


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """The inputs with every floating-point tensor in another precision."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: cast(value, dtype) for name, value in inputs.items()}
    return tuple(cast(value, dtype) for value in inputs) if isinstance(inputs, tuple) else inputs


def output_dtype(subject: Subject) -> torch.dtype:
    """The precision that a model computes in: that of its parameters, else of its input."""
    if isinstance(subject.model, nn.Module):
        for parameter in subject.model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
    x = varied_input(subject.inputs, subject.varied)
    return x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.get_default_dtype()


def brief(error: BaseException) -> str:
    """An error in one short line.

    >>> brief(ValueError("no"))
    'ValueError: no'
    """
    first = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
