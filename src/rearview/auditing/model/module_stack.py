"""The modules that are being called, innermost last, with their paths in the model.

>>> import torch
>>> class Talks(torch.nn.Module):
...     def forward(self, x):
...         print(modules.innermost)
>>> modules = ModuleStack()
>>> with modules:
...     torch.nn.Sequential(torch.nn.ReLU(), Talks())(torch.rand(2))
RunningModule(path='1', kind='Talks')
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class RunningModule(NamedTuple):
    path: str
    """As in `model.named_modules()`; empty for the model itself, and outside of all modules."""
    kind: str
    """The class; empty outside of all modules."""


class ModuleStack:
    """Follows the calls of modules while it is entered.

    The hooks are on every module of the process: hooks on the model itself would switch off torch's fused paths.
    Without a model, each outermost module that is called counts as one.
    """

    def __init__(self, model: object = None) -> None:
        self.calls = 0
        """The number of calls of an outermost module so far."""
        self._stack: list[RunningModule] = []
        self._paths: dict[int, str] = {}
        self._roots: list[nn.Module] = []
        self._hooks: list[Any] = []
        self._parameters: frozenset[int] | None = None
        if isinstance(model, nn.Module):
            self._add(model)

    @property
    def innermost(self) -> RunningModule:
        return self._stack[-1] if self._stack else RunningModule("", "")

    def __enter__(self) -> Self:
        self._hooks = [
            register_module_forward_pre_hook(lambda module, args: self._enter(module)),
            register_module_forward_hook(lambda module, args, output: self._leave(), always_call=True),
        ]
        return self

    def __exit__(self, *error: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._stack.clear()

    @property
    def roots(self) -> tuple[nn.Module, ...]:
        """The models that were called."""
        return tuple(self._roots)

    def parameters(self) -> frozenset[int]:
        """The storages of the parameters of the models that were called."""
        if self._parameters is None:
            self._parameters = frozenset(
                parameter.untyped_storage()._cdata
                for root in self._roots
                for parameter in root.parameters()
                if parameter.layout is torch.strided
            )
        return self._parameters

    def tensors(self) -> dict[int, str]:
        """Names of buffers, and of attributes that are tensors, by the storage that they live in."""
        found: dict[int, str] = {}
        for root in self._roots:
            for path, module in root.named_modules():
                for name, tensor in (*vars(module).items(), *module._buffers.items()):
                    if type(tensor) is Tensor and tensor.layout is torch.strided:
                        found[tensor.untyped_storage()._cdata] = f"{path}.{name}" if path else name
        return found

    def _add(self, root: nn.Module) -> None:
        self._roots.append(root)
        self._parameters = None
        for path, module in root.named_modules():
            self._paths.setdefault(id(module), path)

    def _enter(self, module: nn.Module) -> None:
        if not self._stack:
            self.calls += 1
            if id(module) not in self._paths:
                self._add(module)
        # A module that the model made on the way has no path; it runs within the one that called it.
        path = self._paths.get(id(module), self.innermost.path)
        self._stack.append(RunningModule(path, type(module).__name__))

    def _leave(self) -> None:
        if self._stack:
            self._stack.pop()
