"""The output that is audited: found in what a model returns, and reshaped to [batch, time, features].

>>> import torch
>>> from rearview.auditing.model.outputs import find
>>> found = find({"loss": torch.tensor(0.5), "logits": torch.zeros(2, 5, 7)}, batch=2, time=5)
>>> found.path, found.read({"logits": torch.zeros(2, 5, 7)}).shape
(('logits',), torch.Size([2, 5, 7]))
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument

# Usual names of the main output, in order of preference.
MAIN = ("logits", "last_hidden_state", "prediction_logits", "output", "outputs", "hidden", "x_hat", "pred")
# Has a time axis, but is not what the model predicts.
SECONDARY = ("past_key_values", "hidden_states", "attentions", "cross_attentions", "encoder_last_hidden_state", "loss")


@dataclass(frozen=True)
class Output:
    """Where the output is in what the model returns, and which of its axes are batch and time."""

    path: tuple[str | int, ...]
    batch_axis: int
    time_axis: int

    @property
    def name(self) -> str:
        return ".".join(map(str, self.path))

    def read(self, returned: Any) -> Tensor:
        """The output as [batch, time, features]; a copy, since a model may overwrite what it returned."""
        tensor = returned
        for step in self.path:
            tensor = (
                getattr(tensor, step) if isinstance(step, str) and not isinstance(tensor, Mapping) else tensor[step]
            )
        tensor = tensor.detach().movedim((self.batch_axis, self.time_axis), (0, 1))
        return tensor.reshape(*tensor.shape[:2], -1).clone()


def find(returned: object, *, batch: int, time: int, batch_axis: int = 0, time_axis: int | None = None) -> Output:
    """The main output with one entry per position of the input; raises BadArgument where there is none.

    `time_axis` is its time axis; by default the first axis, other than the batch, that is as long as the input.
    """
    tensors = list(_tensors(returned, ()))
    if not tensors:
        advice = "Give call=lambda model, x: ... that returns a tensor [batch, time, ...]."
        raise BadArgument("the model", expected="a tensor as output", got=type(returned).__name__, advice=advice)
    for path, tensor in sorted(tensors, key=_importance):
        axis = _time_axis(tensor, batch, time, batch_axis, time_axis)
        if axis is not None:
            return Output(path, batch_axis, axis)
    shapes = ", ".join(f"{'.'.join(map(str, path)) or 'tensor'} {list(tensor.shape)}" for path, tensor in tensors[:4])
    raise BadArgument(
        "the output",
        expected=f"an axis for the {batch} batch items and one for the {time} positions of the input",
        got=shapes,
        advice="An audit needs one output per position. Give call=lambda model, x: ... that returns the output before "
        "pooling, or out_time_axis= where time is another axis.",
    )


def _time_axis(tensor: Tensor, batch: int, time: int, batch_axis: int, time_axis: int | None) -> int | None:
    if tensor.ndim <= batch_axis or tensor.shape[batch_axis] != batch or tensor.dtype == torch.bool:
        return None
    if time_axis is not None:
        fits = -tensor.ndim <= time_axis < tensor.ndim and tensor.shape[time_axis] == time
        return time_axis % tensor.ndim if fits else None
    return next((axis for axis in range(tensor.ndim) if axis != batch_axis and tensor.shape[axis] == time), None)


def _importance(found: tuple[tuple[str | int, ...], Tensor]) -> int:
    path, tensor = found
    names = [step for step in path if isinstance(step, str)]
    if names and names[0] in MAIN:
        return MAIN.index(names[0])
    return len(MAIN) + (2 if names and names[0] in SECONDARY else 0) + (0 if tensor.is_floating_point() else 1)


def _tensors(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], Tensor]]:
    if isinstance(value, Tensor):
        yield path, value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield from _tensors(part, (*path, key))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for n, part in enumerate(value):
            yield from _tensors(part, (*path, n))
    elif is_dataclass(value) and not isinstance(value, type):
        for key, part in vars(value).items():
            yield from _tensors(part, (*path, key))
