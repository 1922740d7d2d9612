"""One call of an op, as a rule sees it: real values beside the sets of its inputs.

>>> import torch
>>> mask = Heard(torch.tensor([0.0, float("-inf")]), None)     # None: a tensor of constants
>>> mask.equal_to(float("-inf")).tolist()
[False, True]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rearview.audit.proof.sets import LOW, constants

if TYPE_CHECKING:
    from rearview.audit.proof.trace import Trace

# At or below this, a finite number in a mask means "not heard". Biases by distance (ALiBi) stay far above it.
STAND_IN = -1e3


@dataclass(slots=True, eq=False)
class Heard:
    """A tensor with its sets: what was passed to an op."""

    value: Tensor
    sets: Tensor | None
    tag: Any = None
    """Where its rows came from, if they travelled (`routes.py`)."""
    selected: bool = False
    """Is its length decided by a value?"""
    _constant: Any = field(default=..., repr=False)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.dim()

    @property
    def is_constant(self) -> bool:
        """Is every element a constant?"""
        constant = self.constant
        return constant is True or (isinstance(constant, Tensor) and bool(constant.all()))

    @property
    def constant(self) -> Tensor | bool:
        """Which elements are constants: True for all, False for none, or a tensor that broadcasts."""
        if self._constant is ...:
            if self.sets is None:
                self._constant = True
            else:
                which = constants(self.sets)
                self._constant = which if bool(which.any()) else False
        return self._constant

    def equal_to(self, number: float) -> Tensor | None:
        """The constants that are this number, at the full shape; None if there are none."""
        if self.constant is False:
            return None
        which = self.value == number
        if self.constant is not True:
            which = which & self.constant
        return which if bool(which.any()) else None

    def low(self) -> Tensor | None:
        """Where a finite stand-in for -inf was written or added, at the full shape; None if nowhere."""
        if not self.value.is_floating_point():
            return None
        which = (self.value <= STAND_IN) & (self.value > float("-inf"))
        if self.sets is not None:
            marked = self.sets[..., LOW]
            which = which & (marked if self.constant is False else marked | self.constant)
            # A sum with finfo.min may overflow; it is still "a score plus a finite number".
            which = which | ((self.value == float("-inf")) & marked)
        return which if bool(which.any()) else None


@dataclass(slots=True, eq=False)
class Call:
    """`args` holds Heard in the place of tensors; `out` is what the op really returned."""

    trace: Trace
    func: Any
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    _bound: dict[str, Any] | None = None

    def __getitem__(self, argument: str) -> Any:
        """An argument by its name in the schema, or its default, or None."""
        if self._bound is None:
            bound = {}
            for i, formal in enumerate(self.func._schema.arguments):
                if i < len(self.args) and not formal.kwarg_only:
                    bound[formal.name] = self.args[i]
                elif formal.name in self.kwargs:
                    bound[formal.name] = self.kwargs[formal.name]
                elif formal.has_default_value():
                    bound[formal.name] = formal.default_value
            self._bound = bound
        return self._bound.get(argument)

    @property
    def inputs(self) -> list[Heard]:
        """All tensors among the arguments."""
        found: list[Heard] = []

        def search(value: Any) -> None:
            if isinstance(value, Heard):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    search(item)

        search(self.args)
        search(list(self.kwargs.values()))
        return found

    def dims(self, value: Any, ndim: int) -> list[int]:
        """Axes as non-negative numbers; None or () means all."""
        if value is None or (isinstance(value, (list, tuple)) and not value):
            return list(range(ndim))
        many = list(value) if isinstance(value, (list, tuple)) else [value]
        return sorted({dim % ndim for dim in many}) if ndim else []


def raw(value: Any) -> Any:
    """The same arguments with plain tensors."""
    if isinstance(value, Heard):
        return value.value
    if isinstance(value, (list, tuple)):
        return type(value)(raw(item) for item in value)
    return value
