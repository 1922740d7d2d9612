"""Rounding or a leak: in float64 rounding all but vanishes, and what a position really hears does not.

>>> import torch
>>> from rearview.audit.noise import Judge
>>> from rearview.audit.subject import Subject
>>> subject = Subject.of(lambda x: x + 1e-9 * x.mean(1, keepdim=True), torch.randn(1, 4))
>>> judge = Judge(subject)
>>> other = subject.x.clone()
>>> other[0, 3] = 30
>>> judge(subject.x, other, watched=torch.tensor([True, True, True, False]), amount=1e-8, scale=1.0).is_leak
True

Most models never come here: clean ones do not move by one bit, and leaks move by far more than rounding. It is for
sums whose order depends on values (experts that gather their tokens) and for runs of different lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rearview.audit import companions
from rearview.audit.groups import each_group
from rearview.audit.probe import difference
from rearview.audit.state import twin_of
from rearview.audit.subject import Subject

# Differences above this share of an ordinary output are never rounding.
SURELY = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 0.3, torch.float16: 0.1}
# In float64, rounding shrinks by about 5e8 and a leak stays: anything between is neither.
LEAK_KEEPS, NOISE_KEEPS = 0.1, 1e-3
MOST_PARAMETERS = 1 << 30


class Judgement(NamedTuple):
    is_leak: bool
    is_noise: bool
    why: str


@dataclass
class Judge:
    """Decides on differences; makes the float64 twin when it is first needed."""

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
        """Is a difference of `amount` at the watched positions, bool [time] or [rows, time], a leak?

        `clean` and `other` are inputs [rows, time, ...] that may differ in length.
        """
        dtype = output_dtype(self.subject)
        if amount > SURELY.get(dtype, 1e-3) * max(scale, 1e-30):
            return Judgement(True, False, f"{amount:.3g} is far above rounding")
        double = self.double()
        if isinstance(double, str):
            return Judgement(False, False, f"{amount:.3g} may be rounding, and float64 was no help: {double}")
        try:
            before, after = (_doubled(double, x, items) for x in (clean, other))
        except Exception as error:
            return Judgement(False, False, f"{amount:.3g} may be rounding, and float64 failed: {brief(error)}")
        length = min(before.shape[1], after.shape[1])
        amounts, _ = difference(before[:, :length], after[:, :length])
        in_double = float(amounts.masked_fill(~watched[..., :length], 0.0).max())
        if in_double >= LEAK_KEEPS * amount:
            return Judgement(True, False, f"{in_double:.3g} is left in float64, as much as before")
        if in_double <= NOISE_KEEPS * amount:
            return Judgement(False, True, f"{amount:.3g} is rounding: in float64 {in_double:.3g} is left of it")
        return Judgement(False, False, f"{amount:.3g} becomes {in_double:.3g} in float64: neither rounding nor a leak")

    def double(self) -> Subject | str:
        """The subject in float64, or why there is none."""
        if not self._double:
            self._double.append(self._make())
        return self._double[0]

    def _make(self) -> Subject | str:
        subject = self.subject
        if subject.parameters > MOST_PARAMETERS:
            return f"a copy of {subject.parameters:,} parameters would be too large"
        try:
            model = twin_of(subject.model).double() if isinstance(subject.model, nn.Module) else subject.model
        except Exception as error:
            return f"the model cannot be copied ({brief(error)})"
        inputs = cast(subject.inputs, torch.float64)
        return replace(subject.with_model(model), inputs=inputs, x=cast(subject.x, torch.float64))


def in_double(run: Callable[[], Tensor]) -> Tensor:
    """Run with float64 as the dtype of new tensors: a model makes masks and positions of its own."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with each_group():
            return run()
    finally:
        torch.set_default_dtype(default)


def _doubled(double: Subject, x: Tensor, items: Tensor | None) -> Tensor:
    return in_double(lambda: double.run(cast(x, torch.float64), items))


def cast(inputs: Any, dtype: torch.dtype) -> Any:
    """The inputs with every float in another precision."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: cast(value, dtype) for name, value in inputs.items()}
    return tuple(cast(value, dtype) for value in inputs) if isinstance(inputs, tuple) else inputs


def output_dtype(subject: Subject) -> torch.dtype:
    """The precision that a subject computes in: of its parameters, else of its input."""
    if isinstance(subject.model, nn.Module):
        for parameter in subject.model.parameters():
            if parameter.is_floating_point():
                return parameter.dtype
    x = companions.get(subject.inputs, subject.varied)
    return x.dtype if isinstance(x, Tensor) and x.is_floating_point() else torch.get_default_dtype()


def brief(error: BaseException) -> str:
    """An error in one short line.

    >>> brief(ValueError("no"))
    'ValueError: no'
    """
    first = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {first[0]}" if first else type(error).__name__
    return text if len(text) <= 160 else f"{text[:159]}…"
