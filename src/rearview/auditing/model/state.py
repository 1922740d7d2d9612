"""The state of a model, saved before an audit and restored after it, whatever happens in between.

>>> import torch
>>> from rearview.auditing.model.state import preserved_state
>>> model = torch.nn.BatchNorm1d(2)
>>> with preserved_state(model):
...     _ = model(torch.randn(8, 2))
>>> model.running_mean.tolist(), model.training
([0.0, 0.0], True)

A model may change itself as it runs: it counts in a buffer, keeps the last batch in an attribute, or swaps a module
(BigBird replaces its sparse attention at the first short input). Modules, flags and strings are restored before every
run, so that all runs of an audit are runs of the same model. Numbers and tensors are restored before every run only
where two runs of the same input would differ otherwise, and in any case after the audit.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import UninitializedParameter

from rearview.errors import BadArgument

# Parameters are copied up to this many bytes. Few models write to their parameters in a forward pass.
MOST_BYTES_COPIED = 1 << 28
# Containers within containers are copied down to this depth.
DEEPEST = 4
# What every module has. Its parameters, its hooks and its mode are restored after the audit.
OF_EVERY_MODULE = frozenset(vars(nn.Module()))
Flag = bool | str | None


@contextmanager
def preserved_state(model: object) -> Iterator[None]:
    """Restore modules, attributes, hooks, mode, buffers, parameters, gradients, generators and threads on exit."""
    generators, threads = GeneratorStates(), torch.get_num_threads()
    dtype = torch.get_default_dtype()
    modules = modules_of(model)
    training = [module.training for module in modules]
    registered = [_Registered(module) for module in modules]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    _check_initialized(parameters)
    small = sum(bytes_of(parameter) for parameter in parameters) <= MOST_BYTES_COPIED
    saved = [_SavedParameter(parameter, with_values=small) for parameter in parameters]
    state = ModelState(model)
    try:
        yield
    finally:
        state.restore(values=True)
        for module, was in zip(modules, training, strict=True):
            module.training = was
        for each in (*registered, *saved):
            each.restore()
        generators.restore()
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


class _Registered:
    """The parameters and the hooks of one module, by identity."""

    def __init__(self, module: nn.Module):
        names = [] if isinstance(module, torch.jit.ScriptModule) else OF_EVERY_MODULE - {"_modules", "_buffers"}
        held = [vars(module)[name] for name in names if isinstance(vars(module).get(name), dict)]
        self.saved = [(each, each.copy()) for each in held]

    def restore(self) -> None:
        for held, saved in self.saved:
            if list(held) != list(saved) or any(held[name] is not saved[name] for name in saved):
                held.clear()
                held.update(saved)


class _SavedParameter:
    """The memory of a parameter, its gradient and, with `with_values`, what they hold."""

    def __init__(self, parameter: nn.Parameter, *, with_values: bool):
        self.parameter, self.data = parameter, parameter.data
        self.requires_grad, self.gradient = parameter.requires_grad, parameter.grad
        self.values = parameter.detach().clone() if with_values else None
        self.gradient_values = _copied(parameter.grad) if with_values else parameter.grad

    def restore(self) -> None:
        parameter = self.parameter
        if not _shares_memory(parameter, self.data):
            parameter.data = self.data
        parameter.requires_grad_(self.requires_grad)
        parameter.grad = self.gradient
        _put_back(self.gradient, self.gradient_values)
        # A write through `.data` does not change the version.
        if self.values is not None and not _same(parameter.detach(), self.values):
            with torch.no_grad():
                parameter.copy_(self.values)


def _check_initialized(parameters: Sequence[nn.Parameter]) -> None:
    if any(isinstance(parameter, UninitializedParameter) for parameter in parameters):
        advice = "Call the model once before the audit."
        raise BadArgument("model", expected="initialized parameters", got="a lazy module", advice=advice)


def _shares_memory(a: Tensor, b: Tensor) -> bool:
    if a.layout is not torch.strided or b.layout is not torch.strided:
        return a.layout is b.layout
    return a.dtype is b.dtype and a.shape == b.shape and a.untyped_storage()._cdata == b.untyped_storage()._cdata


def bytes_of(tensor: Tensor) -> int:
    """The size of a tensor; 0 for a sparse one."""
    return tensor.nbytes if tensor.layout is torch.strided else 0


def modules_of(model: object) -> list[nn.Module]:
    """All modules of a model; of a bound method, those of the object that it is bound to."""
    owner = model if isinstance(model, nn.Module) else getattr(model, "__self__", None)
    return list(owner.modules()) if isinstance(owner, nn.Module) else []


class ModelState:
    """Modules, attributes and buffers of a model, and of its configuration, as they were when this was created."""

    def __init__(self, model: object):
        self.undone: dict[str, None] = {}
        """Names of what the model had changed and `restore` put back."""
        modules = modules_of(model)
        paths = {id(module): path for module in modules[:1] for path, module in module.named_modules()}
        self._holders = [_Holder(paths.get(id(module), ""), module) for module in modules]
        configs = {id(config): config for module in modules if (config := getattr(module, "config", None)) is not None}
        self._holders += [_Holder("config", config) for config in configs.values() if hasattr(config, "__dict__")]

    def restore(self, *, values: bool) -> None:
        """Put back modules, flags and strings; with `values` numbers, tensors, lists and dicts too."""
        for holder in self._holders:
            for name in holder.restore(values=values):
                self.undone[name] = None

    @property
    def changed(self) -> list[str]:
        """Names of everything that is not as it was, except for what was None: a cache that was filled."""
        return [name for holder in self._holders for name in holder.changed()]


class _Holder:
    """What one module, or one configuration, holds."""

    def __init__(self, path: str, owner: Any):
        self.path = path
        # A compiled module keeps its parts in C++, where no Python code swaps them.
        has_parts = isinstance(owner, nn.Module) and not isinstance(owner, torch.jit.ScriptModule)
        self.modules: dict[str, Any] = owner._modules if has_parts else {}
        self.buffers: dict[str, Any] = owner._buffers if has_parts else {}
        # A lazy module becomes another class at its first call.
        fixed = isinstance(owner, (LazyModuleMixin, torch.jit.ScriptModule))
        self.attributes: dict[str, Any] = {} if fixed else vars(owner)
        self.saved_modules = dict(self.modules)
        self.saved_buffers = {name: (buffer, _copied(buffer)) for name, buffer in self.buffers.items()}
        self.saved_attributes = {
            name: (value, _copied(value)) for name, value in self.attributes.items() if name not in OF_EVERY_MODULE
        }

    def restore(self, *, values: bool) -> list[str]:
        found = []
        for name in [*self.modules, *self.saved_modules]:
            if self.modules.get(name) is not self.saved_modules.get(name):
                found.append(self._named(name))
        if found:
            self.modules.clear()
            self.modules.update(self.saved_modules)
        for name, (value, _) in self.saved_attributes.items():
            now = self.attributes.get(name, _MISSING)
            if now is not value and isinstance(value, Flag) and isinstance(now, bool | str) and now != value:
                self.attributes[name] = value
                found.append(self._named(name))
        return found + (self._restore_values() if values else [])

    def _restore_values(self) -> list[str]:
        found = []
        for held, saved in ((self.buffers, self.saved_buffers), (self.attributes, self.saved_attributes)):
            for name in [name for name in held if name not in saved and name not in OF_EVERY_MODULE]:
                del held[name]
            for name, (value, copied) in saved.items():
                if held.get(name, _MISSING) is not value or not _same(value, copied):
                    held[name] = value
                    _put_back(value, copied)
                    # What was None is a cache that was filled.
                    found += [self._named(name)] if value is not None else []
        return found

    def changed(self) -> list[str]:
        found = [name for name in self.saved_modules if self.modules.get(name) is not self.saved_modules[name]]
        for held, saved in ((self.buffers, self.saved_buffers), (self.attributes, self.saved_attributes)):
            found += [
                name
                for name, (value, copied) in saved.items()
                if value is not None and (held.get(name, _MISSING) is not value or not _same(value, copied))
            ]
        return [self._named(name) for name in found]

    def _named(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name


_MISSING = object()


def _copied(value: Any, depth: int = 0) -> Any:
    """A copy of what can be written to, with what it holds; the value itself of anything else."""
    if isinstance(value, Tensor):
        is_copied = value.layout is torch.strided and value.nbytes <= MOST_BYTES_COPIED
        return value.detach().clone() if is_copied and not isinstance(value, nn.Parameter) else value
    if _is_array(value):
        return value.copy()
    if depth == DEEPEST:
        return value
    if isinstance(value, dict):
        return {key: (item, _copied(item, depth + 1)) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [(item, _copied(item, depth + 1)) for item in value]
    return value.copy() if isinstance(value, set) else value


def _same(value: Any, copied: Any) -> bool:
    if value is copied:
        return True
    if isinstance(value, Tensor):
        if value.shape != copied.shape or value.layout is not torch.strided:
            # A sparse tensor is put back, whether it was written to or not.
            return False
        # A single pass; the second is for NaN, which is not equal to itself.
        same = torch.equal(value, copied)
        return same or bool(((value == copied) | ((value != value) & (copied != copied))).all())
    if _is_array(value):
        return value.shape == copied.shape and value.tobytes() == copied.tobytes()
    if isinstance(value, set):
        return value == copied
    if len(value) != len(copied):
        return False
    if isinstance(value, dict):
        return all(value.get(key, _MISSING) is item and _same(item, copy) for key, (item, copy) in copied.items())
    return all(now is item and _same(item, copy) for now, (item, copy) in zip(value, copied, strict=True))


def _put_back(value: Any, copied: Any) -> None:
    """Give a value back what it held."""
    if value is copied or _same(value, copied):
        return
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.data = copied.clone()
    elif _is_array(value):
        value[...] = copied
    elif isinstance(value, set):
        value.clear()
        value.update(copied)
    else:
        _refill(value, copied)


def _refill(container: Any, copied: Any) -> None:
    for item, copy in copied.values() if isinstance(container, dict) else copied:
        _put_back(item, copy)
    if isinstance(container, dict):
        container.clear()
        container.update({key: item for key, (item, _) in copied.items()})
    elif not isinstance(container, tuple):
        container.clear()
        container.extend(item for item, _ in copied)


def _is_array(value: Any) -> bool:
    """Whether it is an array of numpy that holds numbers."""
    return "numpy" in sys.modules and isinstance(value, sys.modules["numpy"].ndarray) and not value.dtype.hasobject


class GeneratorStates:
    """The states of the random generators of torch, Python and, where it is loaded, numpy."""

    def __init__(self) -> None:
        self.torch = torch.get_rng_state()
        self.cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        self.python = random.getstate()
        self.numpy: Any = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None

    def restore(self) -> None:
        torch.set_rng_state(self.torch)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


def drawn_outside_of_torch(seed: int) -> bool:
    """Whether the model has drawn from the generators of Python or numpy since `seed_all(seed)`."""
    if random.getstate() != random.Random(seed).getstate():
        return True
    if "numpy" not in sys.modules:
        return False
    numpy = sys.modules["numpy"]
    _, keys, *rest = numpy.random.get_state()
    _, seeded, *start = numpy.random.RandomState(seed % 2**32).get_state()
    return rest != start or not numpy.array_equal(keys, seeded)


def seed_all(seed: int) -> None:
    """Seed every generator that a model might draw from, so that two runs draw the same."""
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:
        # The same without a look at every kind of device, which would take longer than many a model.
        torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
