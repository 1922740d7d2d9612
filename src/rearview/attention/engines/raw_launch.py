"""Launch a Triton kernel without Triton's Python path, which takes 40 to 80 us per launch; this takes about 4.

    RawKernel(kernel, ROWS=16, num_warps=4)((blocks, 1), (query, out), (q_len,), device=0)

The first launch for a device goes through Triton, which compiles. The next ones call the compiled kernel with addresses
and numbers. That is valid only for arguments that Triton would specialise alike, so a `RawKernel` is made for one set
of strides, tensors that are not aligned to 16 bytes go through Triton, and other numbers must be `do_not_specialize`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# What the vector loads of a kernel that was compiled for aligned tensors need.
ALIGNMENT = 16
# Versions of Triton whose launcher can be called without the wrapper that reserves scratch memory.
DIRECT = ("3.5.", "3.6.")


class RawKernel:
    """A kernel with the values of its constants and its options; called with a grid, tensors and numbers."""

    def __init__(self, kernel: Any, **options: Any):
        self._kernel, self._options = kernel, options
        # The interpreter of Triton has functions of another kind, and nothing to compile.
        self._is_compiled = type(kernel).__name__ == "JITFunction"
        self._constants = tuple(options[name] for name in kernel.arg_names if name in options)
        # By the index of the device.
        self._ready: dict[int, Callable[..., None]] = {}

    def __call__(self, grid: tuple[int, int], tensors: Sequence[Tensor], numbers: Sequence[float], device: int) -> None:
        """`tensors` come first in the arguments of the kernel, then `numbers`, then its constants."""
        addresses = [tensor.data_ptr() for tensor in tensors]
        aligned = are_aligned(addresses)
        # A compiled kernel belongs to one device, and is launched on the current one.
        if aligned and device in self._ready and torch._C._cuda_getDevice() == device:
            stream = torch._C._cuda_getCurrentRawStream(device)
            self._ready[device](*grid, stream, *addresses, *numbers)
            return
        if not self._is_compiled:
            self._kernel[grid](*tensors, *numbers, **self._options)
            return
        with torch.cuda.device(device):
            compiled = self._kernel[grid](*tensors, *numbers, **self._options)
        if aligned:
            self._ready[device] = _launcher(compiled, self._constants)

    def ready_on(self, device: int) -> Callable[..., None] | None:
        """A function of grid x, grid y, stream, addresses and numbers, once the kernel is compiled for a device.

        It is for aligned addresses, on the current device.
        """
        return self._ready.get(device)


def are_aligned(addresses: Sequence[int]) -> bool:
    """Whether all addresses are those of tensors that Triton compiles vector loads for.

    >>> are_aligned([64, 32]), are_aligned([64, 36])
    (True, False)
    """
    bits = 0
    for address in addresses:
        bits |= address
    return not bits % ALIGNMENT


def _launcher(compiled: Any, constants: tuple[Any, ...]) -> Callable[..., None]:
    run, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    if (launch := direct_launch(compiled)) is not None:

        def direct(x: int, y: int, stream: int, *arguments: float) -> None:
            launch((x, y), stream, (*arguments, *constants))

        return direct

    def wrapped(x: int, y: int, stream: int, *arguments: float) -> None:
        run(x, y, 1, stream, function, metadata, None, None, None, *arguments, *constants)

    return wrapped


class DirectLaunch:
    """The launcher of a compiled kernel below all of Triton's Python. Tensor maps are arguments that `map_of` makes."""

    def __init__(self, compiled: Any, launch: Callable[..., None], maps: Sequence[Any]) -> None:
        run = compiled.run
        self._launch, self._maps = launch, maps
        flags = (run.launch_cooperative_grid, run.launch_pdl)
        self._fixed = (compiled.function, *flags, None, None, compiled.packed_metadata, None, None, None)

    def __call__(self, programs: tuple[int, ...], stream: int, arguments: Sequence[Any]) -> None:
        """Launch with all arguments: maps, addresses, numbers, constants."""
        x, y, z = (*programs, 1, 1)[:3]
        self._launch(x, y, z, stream, *self._fixed, *arguments)

    def map_of(self, place: int, described: Any) -> Sequence[Any]:
        """The arguments for the tensor map number `place`, which hold its address and no tensor."""
        from triton.backends.nvidia.driver import make_tensordesc_arg  # pyright: ignore[reportMissingImports]

        return make_tensordesc_arg(described, self._maps[place])  # pyright: ignore[reportCallIssue]


def direct_launch(compiled: Any) -> DirectLaunch | None:
    """A kernel's launcher without Triton's Python path; None for versions of Triton whose launcher is another."""
    import triton  # pyright: ignore[reportMissingImports]

    run = compiled.run
    scratch = getattr(run, "global_scratch_size", 1) or getattr(run, "profile_scratch_size", 1)
    if not triton.__version__.startswith(DIRECT) or not hasattr(run, "launch") or scratch:
        return None
    maps = getattr(compiled.metadata, "tensordesc_meta", None)
    if not maps:
        return DirectLaunch(compiled, run.launch, ())
    # A function that makes the maps is around the launcher.
    around = dict(zip(run.launch.__code__.co_freevars, run.launch.__closure__ or (), strict=False))
    if "launcher" not in around:
        return None
    return DirectLaunch(compiled, around["launcher"].cell_contents, maps)
