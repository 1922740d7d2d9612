"""The inputs of a call: the varied one, and others (masks, positions, labels) that follow its rows and its length.

>>> import torch
>>> from rearview.auditing.model.inputs import Fitting, fit_inputs
>>> inputs = {"input_ids": torch.zeros(2, 4), "attention_mask": torch.ones(2, 4), "scale": 3}
>>> rows = torch.tensor([0, 1, 1])
>>> fitted = fit_inputs(inputs, "input_ids", torch.zeros(3, 2), items=rows, fitting=Fitting(batch=2, time=4))
>>> fitted["attention_mask"].shape, fitted["scale"]
(torch.Size([3, 2]), 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported

Inputs = Tensor | dict[str, Any] | tuple[Any, ...]


def as_inputs(given: object) -> Inputs:
    """A tensor, or a dict or tuple that holds tensors; anything else is refused."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if isinstance(given, (tuple, list)) and any(isinstance(part, Tensor) for part in given):
        return tuple(given)
    advice = "Tokens are an integer tensor [batch, time], features a float tensor [batch, time, features]."
    raise BadArgument(
        "inputs", expected="a tensor, or a dict or tuple of tensors", got=type(given).__name__, advice=advice
    )


def choose_varied(inputs: Inputs, vary: str | int | None, preferred: Sequence[str]) -> str | int | None:
    """The name or index of the input to vary: the one asked for, else the main one."""
    if isinstance(inputs, Tensor):
        if vary is not None:
            raise BadArgument("vary", expected="nothing, as the inputs are one tensor", got=repr(vary))
        return None
    values: dict[Any, Any] = inputs if isinstance(inputs, dict) else dict(enumerate(inputs))
    names = list(values)
    if vary is not None:
        if vary not in names:
            raise BadArgument("vary", expected=f"one of {names}", got=repr(vary))
        return vary
    for name in preferred:
        if isinstance(values.get(name), Tensor):
            return name
    for name, value in values.items():
        if isinstance(value, Tensor) and value.ndim >= 2:
            return name
    raise BadArgument("inputs", expected="a tensor [batch, time, ...] among them", got=f"{names}")


def varied_input(inputs: Any, name: str | int | None) -> Any:
    return inputs if name is None else inputs[name]


def with_varied(inputs: Any, name: str | int | None, value: Tensor) -> Any:
    """The inputs with another value for the varied one."""
    if name is None:
        return value
    if isinstance(inputs, dict):
        return {**inputs, name: value}
    return tuple(value if n == name else part for n, part in enumerate(inputs))


def named_inputs(inputs: Any, name: str | int | None, first: str) -> dict[str, Any]:
    """The inputs as keyword arguments, to which others can be added; `first` names the only one."""
    if isinstance(inputs, dict):
        return inputs
    if name is None:
        return {first: inputs}
    raise Unsupported("keyword inputs", ["the inputs are a tuple, so their names are not known"])


def companions(inputs: Any, name: str | int | None, *, time: int) -> list[str | int]:
    """The names of the other inputs with an axis as long as the varied one: they may follow its length, or may not.

    >>> companions((torch.zeros(2, 7), torch.zeros(2, 7), torch.zeros(2, 5)), 1, time=7)
    [0]
    """
    values = inputs.items() if isinstance(inputs, dict) else enumerate(inputs) if isinstance(inputs, tuple) else ()
    return [key for key, value in values if key != name and isinstance(value, Tensor) and time in value.shape[-3:]]


@dataclass(frozen=True)
class Fitting:
    """How the other inputs of a call follow the varied one."""

    batch: int
    time: int
    batch_axis: int = 0
    time_axis: int = 1
    followers: frozenset[str | int] | None = None
    """Those whose length follows the varied input; None for all that are as long."""

    def rows(self, value: Tensor, items: Tensor) -> Tensor:
        """The entries of some batch items, where the value has an entry for each."""
        for axis in (self.batch_axis, 0):
            if axis < value.ndim and value.shape[axis] == self.batch:
                return value.index_select(axis, items.to(value.device))
        return value

    def of_length(self, value: Tensor, key: str | int, length: int) -> Tensor:
        if self.followers is not None and key not in self.followers:
            return value
        for axis in self._axes(value):
            more = length - self.time
            value = value.narrow(axis, 0, length) if more < 0 else _extended(value, axis, more, key)
        return value

    def _axes(self, value: Tensor) -> list[int]:
        """The axes that hold time: the last two of a mask [query, key], else one."""
        if value.ndim == 4 or (value.ndim >= 2 and value.shape[-2:] == (self.time, self.time) and _is_mask(value)):
            return [axis for axis in (value.ndim - 2, value.ndim - 1) if value.shape[axis] == self.time]
        fits = value.ndim in (2, 3) and self.time_axis < value.ndim and value.shape[self.time_axis] == self.time
        return [self.time_axis] if fits else [1] if value.ndim in (2, 3) and value.shape[1] == self.time else []


def fit_inputs(inputs: Any, name: str | int | None, x: Tensor, *, items: Tensor | None, fitting: Fitting) -> Any:
    """The inputs with all but the varied one at the rows and the length of `x`.

    Raises Unsupported where one of them cannot be extended.
    """
    if isinstance(inputs, Tensor):
        return inputs

    def fitted(key: str | int, value: Any) -> Any:
        if key == name or not isinstance(value, Tensor):
            return value
        if items is not None and value.ndim:
            value = fitting.rows(value, items)
        return value if x.shape[1] == fitting.time else fitting.of_length(value, key, x.shape[1])

    if isinstance(inputs, dict):
        return {key: fitted(key, value) for key, value in inputs.items()}
    return tuple(fitted(n, value) for n, value in enumerate(inputs))


def _is_mask(value: Tensor) -> bool:
    """Whether a tensor can only be a mask: booleans, or zeros and very low numbers."""
    if value.dtype == torch.bool:
        return True
    return value.is_floating_point() and bool(((value == 0) | (value == 1) | (value <= -1e3)).all())


def _extended(value: Tensor, axis: int, more: int, key: str | int) -> Tensor:
    last = value.narrow(axis, value.shape[axis] - 1, 1)
    if value.ndim == 2 and key == "position_ids":
        steps = torch.arange(1, more + 1, device=value.device, dtype=value.dtype)
        return torch.cat([value, last + steps], axis)
    if value.ndim == 2 and not value.is_floating_point():
        return torch.cat([value, last.expand(*value.shape[:axis], more)], axis)
    raise Unsupported("a longer input", [f"how to extend {key!r} {list(value.shape)} is not known"])
