"""Two runs in lockstep, op by op: what went in, what came out, on which line, in which module.

>>> import torch
>>> from rearview.audit.place.record import Recorder
>>> with Recorder(None) as clean:
...     _ = torch.ones(1, 4).cumsum(1).mean(1)
>>> [op.name for op in clean.ops]
['aten.ones.default', 'aten.cumsum.default', 'aten.mean.dim']
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten
from torch.utils.weak import WeakTensorKeyDictionary

from rearview.audit.source import current_line

# op number, output number
Origin = tuple[int, int]


@dataclass(eq=False)
class Op:
    """One operator as it ran."""

    index: int
    name: str
    inputs: list[Tensor]
    """Values at the time, in the order of the arguments."""
    origins: list[Origin | None]
    """Which output of which op each input is; None for what was there before, or was written to since."""
    outputs: list[Tensor]
    arguments: tuple[Any, ...]
    """The arguments with their tensors replaced by None, then the keyword arguments as a dict."""
    module: str
    module_class: str
    file: str
    line: int
    writes: bool
    """Does it write to one of its inputs?"""
    call: int
    """Which call of the model it belongs to: a step, when it is called in steps."""
    input_storages: list[int]
    output_storages: list[int]


Change = Callable[[Op], list[Tensor] | None]


@dataclass(eq=False)
class _Caller:
    path: str
    kind: str


class Recorder(TorchDispatchMode):
    """Records every op while it is entered. `change` may give an op other outputs than its own."""

    def __init__(self, model: Any, change: Change | None = None):
        super().__init__()
        self.ops: list[Op] = []
        self.change = change
        self.known: Any = WeakTensorKeyDictionary()
        self.names = _names(model)
        self.callers: list[_Caller] = []
        self.calls = 0
        self.hooks: list[Any] = []

    def __enter__(self) -> Recorder:
        # Hooks on every module of the process: hooks on the model itself would switch off torch's fused paths.
        self.hooks = [
            register_module_forward_pre_hook(lambda module, args: self._enter(module)),
            register_module_forward_hook(lambda module, args, result: self._leave(), always_call=True),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        for hook in self.hooks:
            hook.remove()
        super().__exit__(*error)

    def _enter(self, module: nn.Module) -> None:
        path = self.names.get(id(module))
        if not self.callers:
            self.calls += 1
        if path is None:
            path = self.callers[-1].path if self.callers else ""
        self.callers.append(_Caller(path, type(module).__name__))

    def _leave(self) -> None:
        if self.callers:
            self.callers.pop()

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
        caller = self.callers[-1] if self.callers else _Caller("", "")
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
            call=self.calls,
            input_storages=storages,
            output_storages=[_storage(output) for output in outputs],
        )
        replaced = self.change(op) if self.change is not None else None
        if replaced is not None:
            op.outputs = [value.detach().clone() for value in replaced]
            for output, value in zip(outputs, replaced, strict=True):
                if output.shape == value.shape:
                    # In place, so that an op that wrote to its input, or a view, carries the repair along.
                    _unexpanded(output, value)
        self.ops.append(op)
        for number, output in enumerate(outputs):
            self.known[output] = (output._version, (op.index, number))
        return tree_unflatten(results, shape)

    def _origin(self, tensor: Tensor) -> Origin | None:
        found = self.known.get(tensor)
        return found[1] if found is not None and found[0] == tensor._version else None


def _unexpanded(output: Tensor, value: Tensor) -> None:
    if 0 in output.stride() and output.numel() > 1:
        # Several elements share a place; the first of each stands for all.
        for axis, stride in enumerate(output.stride()):
            if stride == 0:
                output, value = output.narrow(axis, 0, 1), value.narrow(axis, 0, 1)
    output.copy_(value)


def _storage(tensor: Tensor) -> int:
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        # Sparse and other tensors that have none.
        return id(tensor)


def _without_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    def bare(value: Any) -> Any:
        return None if isinstance(value, Tensor) else value

    return (*(bare(value) for value in args), {name: bare(value) for name, value in kwargs.items()})


def _names(model: Any) -> dict[int, str]:
    return {id(module): path for path, module in model.named_modules()} if isinstance(model, nn.Module) else {}


def aligned(clean: Op, other: Op) -> bool:
    """Are these the same step of the same program?"""
    return clean.name == other.name and clean.line == other.line and len(clean.outputs) == len(other.outputs)


def base_name(name: str) -> str:
    """The name without its namespace and overload.

    >>> base_name("aten.mean.dim")
    'mean'
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else name
