"""A run recorded op by op: inputs and outputs, the line and the module of each op.

>>> import torch
>>> from rearview.auditing.place.recording import OpRecorder
>>> with OpRecorder(None) as clean:
...     _ = torch.ones(1, 4).cumsum(1).mean(1)
>>> [op.name for op in clean.ops]
['aten.ones.default', 'aten.cumsum.default', 'aten.mean.dim']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from rearview.auditing.model.dispatch import EveryOp
from rearview.auditing.model.module_stack import ModuleStack
from rearview.auditing.place.positions import Maps, PositionTracker
from rearview.auditing.user_code import current_line

# op number, output number
Origin = tuple[int, int]


@dataclass(eq=False)
class Op:
    """One operator as it ran."""

    index: int
    name: str
    inputs: list[Tensor]
    """Their values at the time, in the order of the arguments."""
    origins: list[Origin | None]
    """Which output of which op each input is; None for tensors from before the run, or written to since."""
    outputs: list[Tensor]
    arguments: tuple[Any, ...]
    """The arguments with their tensors replaced by None, then the keyword arguments as a dict."""
    module: str
    module_class: str
    file: str
    line: int
    writes: bool
    """Whether it writes to one of its inputs."""
    call: int
    """The number of the call of the model that it belongs to: the step, where it is called in steps."""
    input_storages: list[int]
    output_storages: list[int]
    input_positions: list[Maps | None]
    """The time positions of each input, as `positions.py` describes them; None where they are not known."""
    positions: list[Maps | None]
    """Those of each output."""


Change = Callable[[Op], list[Tensor] | None]


class OpRecorder(EveryOp):
    """Records every op while it is entered. `change` may replace the outputs of an op; `tracker` follows positions."""

    def __init__(self, model: Any, change: Change | None = None, tracker: PositionTracker | None = None):
        super().__init__()
        self.ops: list[Op] = []
        self.change, self.tracker = change, tracker
        self.known: Any = WeakTensorKeyDictionary()
        self.modules = ModuleStack(model)

    def __enter__(self) -> OpRecorder:
        self.modules.__enter__()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.modules.__exit__()
        super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        flat, _ = tree_flatten((args, kwargs))
        tensors = [value for value in flat if isinstance(value, Tensor)]
        origins = [self._origin(tensor) for tensor in tensors]
        before = [
            self.ops[origin[0]].outputs[origin[1]] if origin is not None else tensor.detach().clone()
            for tensor, origin in zip(tensors, origins, strict=True)
        ]
        storages = [_storage(tensor) for tensor in tensors]
        result = func(*args, **kwargs)
        results, shape = tree_flatten(result)
        outputs = [value for value in results if isinstance(value, Tensor)]
        before_positions = [self._positions(tensor) for tensor in tensors]
        if self.tracker is not None:
            self.tracker.follow(func, args, kwargs, outputs)
        caller = self.modules.innermost
        file, line = current_line()
        op = Op(
            index=len(self.ops),
            name=str(func),
            inputs=before,
            origins=origins,
            outputs=[output.detach().clone() for output in outputs],
            arguments=_without_tensors(args, kwargs),
            module=caller.path,
            module_class=caller.kind,
            file=file,
            line=line,
            writes=any(any(output is tensor for tensor in tensors) for output in outputs),
            call=self.modules.calls,
            input_storages=storages,
            output_storages=[_storage(output) for output in outputs],
            input_positions=before_positions,
            positions=[self._positions(output) for output in outputs],
        )
        replaced = self.change(op) if self.change is not None else None
        if replaced is not None:
            op.outputs = [value.detach().clone() for value in replaced]
            for output, value in zip(outputs, replaced, strict=True):
                if output.shape == value.shape:
                    # In place, so that views, and inputs that the op wrote to, get the new values too.
                    _write_into(output, value)
        self.ops.append(op)
        for number, output in enumerate(outputs):
            self.known[output] = (output._version, (op.index, number))
        return tree_unflatten(results, shape)

    def _positions(self, tensor: Tensor) -> Maps | None:
        return None if self.tracker is None else self.tracker.of(tensor)

    def _origin(self, tensor: Tensor) -> Origin | None:
        found = self.known.get(tensor)
        return found[1] if found is not None and found[0] == tensor._version else None


def _write_into(output: Tensor, value: Tensor) -> None:
    if 0 in output.stride() and output.numel() > 1:
        # Several elements share one place in memory; the first of them stands for all.
        for axis, stride in enumerate(output.stride()):
            if stride == 0:
                output, value = output.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
    output.copy_(value)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        # Sparse and other tensors have no storage.
        return id(tensor)


def _without_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    def bare(value: Any) -> Any:
        return None if isinstance(value, Tensor) else value

    return (*(bare(value) for value in args), {name: bare(value) for name, value in kwargs.items()})


def aligned(clean: Op, other: Op) -> bool:
    """Whether these are the same op of the same program in two runs."""
    return clean.name == other.name and clean.line == other.line and len(clean.outputs) == len(other.outputs)


def base_name(name: str) -> str:
    """The name without its namespace and overload.

    >>> base_name("aten.mean.dim")
    'mean'
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name
