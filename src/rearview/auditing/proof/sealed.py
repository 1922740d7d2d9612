"""Sealed tensors: what the program holds during a proof. Only ops can read their memory, and the proof sees every op.

A sealed tensor has a shape and no memory of its own: the value is kept by the interpreter. Whatever is no op, such as
a C++ extension that takes a pointer, DLPack, numpy, or an op in another thread, cannot read a value without the
interpreter, so no way around the proof leads from the input to the output.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> def around(x):
...     with torch._C.DisableTorchFunction():
...         return x + float(x.numpy().sum())
>>> proof = prove(around, torch.rand(1, 3))
>>> proof.value_escapes[0].place.op, bool(proof.hears.all())
('numpy', True)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

# The size of a storage that is only a number: a view of any length fits into it.
NO_MEMORY = 1 << 50

# Methods of a tensor that read its memory without an op.
READERS = (
    *("tolist", "numpy", "__array__", "__dlpack__", "data_ptr", "untyped_storage", "storage", "_typed_storage"),
    *("__reduce_ex__", "apply_", "map_", "map2_", "share_memory_", "__repr__", "__format__"),
)
# Methods that read the length of a tensor, or tell whether it is at most 1. "shape" and "nbytes" are attributes.
LENGTHS = ("size", "__len__", "numel", "nelement", "__iter__", "stride", "is_contiguous", "dim_order")
LENGTH_ATTRIBUTES = ("shape", "nbytes")
# The ops by which C++ code asks for them.
LAYOUT_OPS = {
    getattr(torch.ops.aten, name)
    for name in (
        *("size", "sym_size", "stride", "sym_stride", "numel", "sym_numel", "storage_offset", "sym_storage_offset"),
        *("dim", "is_contiguous", "sym_is_contiguous", "is_strides_like_format", "is_non_overlapping_and_dense"),
    )
    if hasattr(torch.ops.aten, name)
}


class Owner(Protocol):
    """The interpreter of the run that a sealed tensor belongs to."""

    def elsewhere(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an op that did not reach the interpreter."""

    def reads(self, name: str, value: Tensor) -> None:
        """The program reads the memory of a value by a method of this name."""

    def reads_length(self, name: str) -> None:
        """The program reads a length that a value has decided."""

    def takes_shape(self, value: Tensor) -> None:
        """A tensor that the program holds takes on the shape of a value."""


class SealedTensor(Tensor):
    """The shape of `value`, without its memory."""

    value: Tensor
    owner: Owner
    # For masks: their data can be read, and the interpreter sees it.
    is_readable = True
    # Whether C++ code, too, asks for sizes by an op.
    sizes_by_op = False

    @staticmethod
    def __new__(cls, value: Tensor, owner: Owner) -> SealedTensor:
        sealed = Tensor._make_wrapper_subclass(
            cls,
            value.shape,
            strides=value.stride(),
            storage_offset=value.storage_offset(),
            dtype=value.dtype,
            device=value.device,
            storage_size=NO_MEMORY,
            dispatch_sizes_strides_policy="sizes" if cls.sizes_by_op else None,
        )
        # Native code that asks for the pointer gets an exception, not a null pointer.
        torch._C._set_throw_on_mutable_data_ptr(sealed)
        if value.is_conj() or value.is_neg():
            torch._C._set_conj(sealed, value.is_conj())
            torch._C._set_neg(sealed, value.is_neg())
        sealed.value, sealed.owner = value, owner
        return sealed

    __torch_function__ = torch._C._disabled_torch_function_impl  # pyright: ignore[reportAssignmentType]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Ops get here that the interpreter does not see: those of other threads, and all of them after the run."""
        if is_of_layout(func):
            return func(*unsealed(args), **unsealed(kwargs or {}))
        owner = next(tensor.owner for tensor in _flat((args, kwargs)) if isinstance(tensor, SealedTensor))
        return owner.elsewhere(func, args, kwargs or {})

    def fit(self) -> None:
        """Take on the shape of the value, which an op has changed in place."""
        value = self.value
        if self.sizes_by_op:
            return
        self.owner.takes_shape(value)
        if (
            Tensor.size(self) != value.shape
            or Tensor.stride(self) != value.stride()
            or self.storage_offset() != value.storage_offset()
        ):
            with torch._C._DisableTorchDispatch():
                self.as_strided_(value.shape, value.stride(), value.storage_offset())

    @property
    def data(self) -> Tensor:
        return self.detach()

    @data.setter
    def data(self, other: Tensor) -> None:
        self.value = unsealed(other)
        with torch._C.DisableTorchFunction():
            self.fit()

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.clone())


class SealedSelection(SealedTensor):
    """A sealed tensor whose length a value has decided."""

    sizes_by_op = True


def _reader(name: str) -> Callable[..., Any]:
    def read(self: SealedTensor, *args: Any, **kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            self.owner.reads(name, self.value)
            return getattr(self.value, name)(*args, **kwargs)

    return read


def _length(name: str) -> Callable[..., Any]:
    def read(self: SealedTensor, *args: Any, **kwargs: Any) -> Any:
        self.owner.reads_length(name)
        with torch._C.DisableTorchFunction():
            return getattr(Tensor, name)(self.value, *args, **kwargs)

    return read


def _length_attribute(name: str) -> property:
    def read(self: SealedTensor) -> Any:
        self.owner.reads_length(name)
        with torch._C.DisableTorchFunction():
            return getattr(Tensor, name).__get__(self.value)

    return property(read)


for _name in READERS:
    setattr(SealedTensor, _name, _reader(_name))
for _name in LENGTHS:
    setattr(SealedSelection, _name, _length(_name))
for _name in LENGTH_ATTRIBUTES:
    setattr(SealedSelection, _name, _length_attribute(_name))


def is_of_layout(func: Any) -> bool:
    """Whether an op asks only for sizes and strides."""
    return getattr(func, "overloadpacket", None) in LAYOUT_OPS


def unsealed(value: Any) -> Any:
    """The same arguments with the values of sealed tensors."""
    if isinstance(value, SealedTensor):
        return value.value
    if isinstance(value, (list, tuple)):
        made = [unsealed(item) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if type(value) is dict:
        return {key: unsealed(item) for key, item in value.items()}
    return value


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for item in items for tensor in _flat(item)]
