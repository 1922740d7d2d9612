"""Launching a kernel: tensors that it reads by TMA become tensor maps, the rest goes as it is.

The first launch of a kind goes through Triton, which compiles. Triton's Python takes 40 to 80 us per launch, so the
next ones call the compiled kernel with addresses and numbers. Two launches are of one kind if Triton would specialise
the kernel alike for them: the same constants, dtypes, tiles and alignments.

`Repeated` repeats a launch with tensors at other addresses, which takes a few microseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from rearview.attention.engines.raw_launch import direct_launch

# What the vector loads of a kernel that was compiled for aligned tensors need.
ALIGNMENT = 16
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Tiled:
    """A tensor that a kernel reads or writes by TMA, in tiles of this shape (one number per axis of the tensor)."""

    tensor: Tensor
    tile: tuple[int, ...]


class Address:
    """What Triton's launcher reads of the tensor of a map."""

    __slots__ = ("_address",)

    def __init__(self, address: int):
        self._address = address

    def data_ptr(self) -> int:
        return self._address


class TensorMap:
    """What Triton's launcher reads of a tensor descriptor, without the checks that the first launch has made."""

    __slots__ = ("base", "padding", "shape", "strides")

    def __init__(self, tensor: Tensor):
        # Not the tensor: maps are kept, and its memory belongs to others when the address comes back.
        self.base, self.shape, self.padding = Address(tensor.data_ptr()), list(tensor.shape), "zero"
        self.strides = strides_of(tensor)

    def at(self, address: int) -> TensorMap:
        """The same for a tensor at another address."""
        other = object.__new__(TensorMap)
        other.base, other.shape, other.padding, other.strides = Address(address), self.shape, "zero", self.strides
        return other


def strides_of(tensor: Tensor) -> list[int]:
    """The strides as TMA takes them: multiples of 16 bytes, where an axis of one element may have any."""
    strides = [stride if size > 1 else 16 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    return [*strides[:-1], 1]


@dataclass(frozen=True, eq=False)
class Compiled:
    """A compiled kernel, and its constants in the order of its arguments."""

    kernel: Any
    values: tuple[Any, ...]

    def run(self, programs: tuple[int, ...], stream: int, arguments: Sequence[Any]) -> None:
        x, y, z = (*programs, 1, 1)[:3]
        kernel = self.kernel
        kernel.run(
            x, y, z, stream, kernel.function, kernel.packed_metadata, None, None, None, *arguments, *self.values
        )  # fmt: skip


class Repeated:
    """A launch to be repeated, with one address for each tensor that it was made with, in their order."""

    # Addresses come back: the allocator gives the memory of the last step to the next one.
    MOST_MAPS = 64

    def __init__(self, compiled: Compiled, programs: tuple[int, ...], arguments: Sequence[Any]) -> None:
        self._compiled, self._programs = compiled, programs
        self._described = [TensorMap(each.tensor) for each in arguments if isinstance(each, Tiled)]
        self._numbers = tuple(each for each in arguments if not isinstance(each, Tiled | Tensor))
        # Tensor maps by address, as arguments of the launcher.
        self._maps: list[dict[int, Sequence[Any]]] = [{} for _ in self._described]
        self._direct = direct_launch(compiled.kernel)

    def __call__(self, addresses: Sequence[int], stream: int) -> None:
        """Launch on the current device. The addresses are aligned where those of the first tensors were."""
        arguments: list[Any] = []
        for place, known in enumerate(self._maps):
            found = known.get(addresses[place])
            arguments += self._map_of(place, addresses[place]) if found is None else found
        arguments += addresses[len(self._maps) :]
        arguments += self._numbers
        if self._direct is None:
            self._compiled.run(self._programs, stream, arguments)
        else:
            self._direct(self._programs, stream, (*arguments, *self._compiled.values))

    def _map_of(self, place: int, address: int) -> Sequence[Any]:
        described, known = self._described[place].at(address), self._maps[place]
        if len(known) >= self.MOST_MAPS:
            known.clear()
        made = (described,) if self._direct is None else self._direct.map_of(place, described)
        known[address] = made
        return made


# Compiled kernels by kind.
_compiled: dict[tuple[Any, ...], Compiled] = {}


def launch(
    kernel: Any,
    programs: tuple[int, ...],
    arguments: Sequence[Tensor | Tiled | int | float],
    constants: Mapping[str, object],
    *,
    warps: int = 4,
) -> Compiled | None:
    """Run a kernel on the current stream of the tensors' device.

    The arguments are tensors by TMA, other tensors, and numbers, in this order. Returns the compiled kernel, of which
    `Repeated` makes a launch to be repeated; None for a first launch of its kind, and off GPUs.
    """
    device, kinds, raw = None, [], []
    for argument, is_specialised in zip(arguments, _specialised(kernel), strict=False):
        if isinstance(argument, Tensor):
            device, address = argument.device, argument.data_ptr()
            kinds.append((argument.dtype, address % ALIGNMENT == 0))
            raw.append(address)
        elif isinstance(argument, Tiled):
            kinds.append((argument.tensor.dtype, argument.tile))
            raw.append(TensorMap(argument.tensor))
        else:
            kinds.append(_kind_of_number(argument, is_specialised))
            raw.append(argument)
    assert device is not None, "a kernel reads or writes some tensor"
    if device.type != "cuda":
        # The interpreter of Triton, which has nothing to compile.
        kernel[programs](*arguments, **constants, num_warps=warps)
        return None
    kind = (kernel, device.index, warps, *constants.items(), *kinds)
    known = _compiled.get(kind)
    # A compiled kernel belongs to one device, and is launched on the current one.
    if known is not None and torch._C._cuda_getDevice() == device.index:
        known.run(programs, torch._C._cuda_getCurrentRawStream(device.index), raw)
        return known
    given = [_descriptor(each) if isinstance(each, Tiled) else each for each in arguments]
    with torch.cuda.device(device) if device.index is not None else contextlib.nullcontext():
        compiled = kernel[programs](*given, **constants, num_warps=warps, enable_fp_fusion=True)
    values = tuple(constants[name] for name in kernel.arg_names if name in constants)
    _compiled[kind] = Compiled(compiled, values)
    return None


@cache
def _specialised(kernel: Any) -> tuple[bool, ...]:
    """For each argument, whether Triton compiles another kernel for some of its values."""
    parameters = getattr(kernel, "params", None)
    if parameters is None:
        return (True,) * len(kernel.arg_names)
    return tuple(not each.do_not_specialize for each in parameters)


def _kind_of_number(number: float, is_specialised: bool) -> object:
    if isinstance(number, float):
        return float
    kind = "int32" if -LARGEST_INT32 <= number <= LARGEST_INT32 else "int64"
    return (kind, number == 1, number % ALIGNMENT == 0) if is_specialised else kind


def _descriptor(tiled: Tiled) -> Any:
    from triton.experimental.gluon import language as gl  # pyright: ignore[reportMissingImports]
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # pyright: ignore[reportMissingImports]

    tensor, rank = tiled.tensor, len(tiled.tile)
    bits = 8 * tensor.element_size()
    # Rows of numbers are not swizzled; tiles of matrices are, as the tensor cores read them.
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128 if rank > 2 else 0, element_bitwidth=bits, rank=rank)
    return TensorDescriptor(tensor, list(tensor.shape), strides_of(tensor), list(tiled.tile), layout)
