"""The state of a model, kept before the audit and put back after it, whatever happens in between.

>>> import torch
>>> from rearview.audit.state import kept
>>> model = torch.nn.BatchNorm1d(2)
>>> with kept(model):
...     _ = model(torch.randn(8, 2))
>>> model.running_mean.tolist(), model.training
([0.0, 0.0], True)
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# Parameters are copied up to this many bytes. A forward pass does not write to them; one that does is an oddity.
MOST_BYTES_COPIED = 1 << 28


@contextmanager
def kept(model: Any) -> Iterator[None]:
    """Train or eval, buffers, parameters, `requires_grad`, gradients and the random generators are as before."""
    generators = _Generators()
    modules = list(model.modules()) if isinstance(model, nn.Module) else []
    training = [module.training for module in modules]
    parameters = [parameter for module in modules for parameter in module.parameters(recurse=False)]
    flags = [(parameter.requires_grad, parameter.grad) for parameter in parameters]
    small = sum(parameter.nbytes for parameter in parameters) <= MOST_BYTES_COPIED
    saved = [parameter.detach().clone() for parameter in parameters] if small else []
    versions = [parameter._version for parameter in parameters]
    buffers = Buffers(model)
    try:
        yield
    finally:
        for module, was in zip(modules, training, strict=True):
            module.training = was
        for parameter, (needs, gradient) in zip(parameters, flags, strict=True):
            parameter.requires_grad_(needs)
            parameter.grad = gradient
        with torch.no_grad():
            for parameter, value, version in zip(parameters, saved, versions[: len(saved)], strict=True):
                if parameter._version != version:
                    parameter.copy_(value)
        buffers.restore()
        generators.restore()


class Buffers:
    """The buffers of a model as they are now: running statistics, counters, caches."""

    def __init__(self, model: Any):
        modules = list(model.modules()) if isinstance(model, nn.Module) else []
        self.saved: list[tuple[dict[str, Tensor | None], str, Tensor, Tensor]] = [
            (module._buffers, name, buffer, buffer.detach().clone())
            for module in modules
            for name, buffer in module._buffers.items()
            if buffer is not None
        ]
        self.holders = [(module._buffers, set(module._buffers)) for module in modules]

    def restore(self) -> None:
        for held, names in self.holders:
            for name in set(held) - names:
                del held[name]
        with torch.no_grad():
            for held, name, buffer, value in self.saved:
                held[name] = buffer
                if buffer.shape != value.shape or not torch.equal(buffer, value):
                    buffer.data = value.clone()

    @property
    def changed(self) -> bool:
        return any(held.get(name) is not buffer or not _same(buffer, value) for held, name, buffer, value in self.saved)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


class _Generators:
    """The random generators of torch, Python and, where it is loaded, numpy."""

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


def seed_all(seed: int) -> None:
    """Every generator that a model might draw from, so that two runs draw the same."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def twin_of(model: Any) -> Any:
    """A deep copy to experiment on. Raises what `copy.deepcopy` raises."""
    return copy.deepcopy(model)
