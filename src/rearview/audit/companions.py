"""The inputs beside the one that is varied: attention masks, positions, labels. They follow its rows and its length.

>>> import torch
>>> from rearview.audit import companions
>>> inputs = {"input_ids": torch.zeros(2, 4), "attention_mask": torch.ones(2, 4), "scale": 3}
>>> fitted = companions.fit(inputs, "input_ids", torch.zeros(3, 2), items=torch.tensor([0, 1, 1]), batch=2, time=4)
>>> fitted["attention_mask"].shape, fitted["scale"]
(torch.Size([3, 2]), 3)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported


def as_inputs(given: Any) -> Tensor | dict[str, Any] | tuple[Any, ...]:
    """A tensor, a dict of them, or a tuple of them; anything else is refused."""
    if isinstance(given, Tensor):
        return given
    if isinstance(given, Mapping):
        return {str(name): value for name, value in given.items()}
    if isinstance(given, (tuple, list)) and any(isinstance(part, Tensor) for part in given):
        return tuple(given)
    advice = "Tokens are an integer tensor [batch, time], features a float tensor [batch, time, features]."
    raise BadArgument(
        "inputs", expected="a tensor, or a dict or tuple of them", came=type(given).__name__, advice=advice
    )


def choose(inputs: Any, vary: str | int | None, preferred: Sequence[str]) -> str | int | None:
    """The name or place of the input to vary: the one asked for, else the main one."""
    if isinstance(inputs, Tensor):
        if vary is not None:
            raise BadArgument("vary", expected="nothing, as the inputs are one tensor", came=repr(vary))
        return None
    names: list[Any] = list(inputs) if isinstance(inputs, dict) else list(range(len(inputs)))
    if vary is not None:
        if vary not in names:
            raise BadArgument("vary", expected=f"one of {names}", came=repr(vary))
        return vary
    for name in preferred:
        if isinstance(inputs, dict) and isinstance(inputs.get(name), Tensor):
            return name
    for name in names:
        if isinstance(inputs[name], Tensor) and inputs[name].ndim >= 2:
            return name
    raise BadArgument("inputs", expected="a tensor [batch, time, ...] among them", came=f"{names}")


def get(inputs: Any, name: str | int | None) -> Any:
    return inputs if name is None else inputs[name]


def put(inputs: Any, name: str | int | None, value: Tensor) -> Any:
    """The inputs with another value for one of them."""
    if name is None:
        return value
    if isinstance(inputs, dict):
        return {**inputs, name: value}
    return tuple(value if n == name else part for n, part in enumerate(inputs))


def named(inputs: Any, name: str | int | None, first: str) -> dict[str, Any]:
    """The inputs as keyword arguments, where further ones are to be added; `first` names the only one."""
    if isinstance(inputs, dict):
        return inputs
    if name is None:
        return {first: inputs}
    raise Unsupported("keyword inputs", ["the inputs are a tuple, so their names are not known"])


def fit(inputs: Any, name: str | int | None, x: Tensor, *, items: Tensor | None, batch: int, time: int) -> Any:
    """The companions for the rows and the length of `x`; what cannot be cut or continued raises Unsupported."""
    if isinstance(inputs, Tensor):
        return inputs

    def fitted(key: str | int, value: Any) -> Any:
        if key == name or not isinstance(value, Tensor):
            return value
        if items is not None and value.ndim and value.shape[0] == batch:
            value = value.index_select(0, items.to(value.device))
        return value if x.shape[1] == time else _of_length(value, time, x.shape[1], key)

    if isinstance(inputs, dict):
        return {key: fitted(key, value) for key, value in inputs.items()}
    return tuple(fitted(n, value) for n, value in enumerate(inputs))


def _of_length(value: Tensor, time: int, length: int, key: str | int) -> Tensor:
    axes = [1] if value.ndim in (2, 3) else [2, 3] if value.ndim == 4 else []
    for axis in axes:
        if value.shape[axis] == time:
            value = value.narrow(axis, 0, length) if length < time else _longer(value, axis, length - time, key)
    return value


def _longer(value: Tensor, axis: int, more: int, key: str | int) -> Tensor:
    last = value.narrow(axis, value.shape[axis] - 1, 1)
    if value.ndim == 2 and key == "position_ids":
        steps = torch.arange(1, more + 1, device=value.device, dtype=value.dtype)
        return torch.cat([value, last + steps], axis)
    if value.ndim == 2 and not value.is_floating_point():
        return torch.cat([value, last.expand(*value.shape[:axis], more)], axis)
    raise Unsupported("a longer input", [f"how {key!r} {list(value.shape)} goes on is not known"])
