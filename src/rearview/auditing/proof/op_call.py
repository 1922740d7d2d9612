"""One call of an op, as a rule sees it: values and, beside them, the sets of what they have heard.

>>> import torch
>>> mask = Heard(torch.tensor([0.0, float("-inf")]), None)     # None: all constants
>>> mask.equal_to(float("-inf")).tolist()
[False, True]
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten

from rearview.auditing.proof.sets import LOW, constants

if TYPE_CHECKING:
    from rearview.auditing.proof.state import ProofState

# A finite number in a mask at or below this means "not heard". Biases by distance (ALiBi) stay far above it.
STAND_IN = -1e3
# exp(-104) is 0 in float32: the logarithm of half the smallest subnormal number is -103.97. In half precision exp is
# computed in float32, and in float64 that logarithm is -745.13.
UNDERFLOW, UNDERFLOW_DOUBLE = 104.0, 746.0


@dataclass(slots=True, eq=False)
class Heard:
    """A tensor that was passed to an op, with its sets."""

    value: Tensor
    sets: Tensor | None
    tag: Any = None
    """A Routed, where its rows were permuted or selected (`routes.py`)."""
    selected: bool = False
    """Whether a value decided its length."""
    _constant: Any = field(default=..., repr=False)

    @property
    def shape(self) -> torch.Size:
        return self.value.shape

    @property
    def ndim(self) -> int:
        return self.value.dim()

    @property
    def is_constant(self) -> bool:
        """Whether every element is a constant."""
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

    @property
    def underflow(self) -> float:
        """How far below the largest score a score must lie for its weight to be 0."""
        return UNDERFLOW_DOUBLE if self.value.dtype is torch.float64 else UNDERFLOW

    def equal_to(self, number: float) -> Tensor | None:
        """Which elements are constants equal to this number, at the full shape; None where there are none."""
        if self.constant is False:
            return None
        which = self.value == number
        if self.constant is not True:
            which = which & self.constant
        return which if bool(which.any()) else None

    def low(self) -> Tensor | None:
        """Where a finite number was written or added instead of -inf, at the full shape; None where there are none."""
        if not self.value.is_floating_point():
            return None
        which = (self.value <= STAND_IN) & (self.value > float("-inf"))
        if self.sets is not None:
            marked = self.sets[..., LOW]
            which = which & (marked if self.constant is False else marked | self.constant)
            # A sum with finfo.min may overflow to -inf; it is still a score plus a finite number.
            which = which | ((self.value == float("-inf")) & marked)
        return which if bool(which.any()) else None


@dataclass(slots=True, eq=False)
class OpCall:
    """`args` holds a Heard in place of each tensor; `out` is what the op returned."""

    state: ProofState
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
        """All tensors among the arguments, without those that are only written to (`out=`)."""
        found: list[Heard] = []

        def search(value: Any) -> None:
            if isinstance(value, Heard):
                found.append(value)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    search(item)

        search(self.args)
        outs = {formal.name for formal in self.func._schema.arguments if formal.is_out}
        search([value for name, value in self.kwargs.items() if name not in outs])
        return found

    def dims(self, value: Any, ndim: int) -> list[int]:
        """Axes as non-negative numbers; None and () mean all axes."""
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


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested outputs; torch's registry knows the unusual containers."""
    if isinstance(value, Tensor):
        return [value]
    if value is None or isinstance(value, (int, float, str)):
        return []
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors(item)]
    if type(value) is dict:
        return [tensor for item in value.values() for tensor in tensors(item)]
    return [leaf for leaf in tree_flatten(value)[0] if isinstance(leaf, Tensor)]
