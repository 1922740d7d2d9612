"""The shared library of the CPU kernel: found, checked, and set to run on the threads of torch.

    >>> from rearview.attention.engines import native
    >>> native.isa() in native.isas() if native.library.MISSING is None else native.isas() == []
    True

It is loaded once, when the package is imported, because a compiled graph cannot load it. What is wrong with it is kept
and said when the engine is asked for: an installation without a kernel works, with the other engines.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from rearview.attention.engines.native.checksum import damage
from rearview.attention.engines.native.openmp import find_parallel
from rearview.errors import BadArgument, RearviewError, Unsupported

ABI = 4
# Of `rv_call`, and of `rv_statistics_call`.
CALL_BYTES = (736, 872)
PATH = Path(__file__).with_name("lib") / "librearview.so"
NOT_BUILT = PATH.with_name("not_built.txt")

# From the plainest to the best, in the order of the C interface.
ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
FORCED = "REARVIEW_NATIVE_ISA"

OTHER_VERSION = "its library is of another version of rearview; build it again"


def _load() -> tuple[ctypes.CDLL | None, str | None]:
    """The library, or why there is none."""
    try:
        if not PATH.exists():
            why = NOT_BUILT.read_text("utf-8", "replace").strip() if NOT_BUILT.exists() else "it was never built"
            return None, f"its library is not in this installation: {why}"
        if damaged := damage(PATH):
            return None, f"its library is damaged: {damaged}; install rearview again"
        library = ctypes.CDLL(str(PATH))
        if library.rv_abi() != ABI:
            return None, OTHER_VERSION
        for name, result, arguments in (
            ("rv_call_size", ctypes.c_int64, []),
            ("rv_statistics_call_size", ctypes.c_int64, []),
            ("rv_forward", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
            ("rv_backward", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
            ("rv_statistics", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
            ("rv_linear", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
            ("rv_activation", ctypes.c_int, [ctypes.c_char_p, ctypes.c_int64]),
            ("rv_isa_available", ctypes.c_int, [ctypes.c_int64]),
            ("rv_isa", ctypes.c_int64, []),
            ("rv_isa_force", ctypes.c_int, [ctypes.c_int64]),
            ("rv_set_parallel", None, [ctypes.c_void_p]),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as error:
        return None, f"its library could not be loaded: {error}"
    if (library.rv_call_size(), library.rv_statistics_call_size()) != CALL_BYTES:
        return None, OTHER_VERSION
    # One pool of threads for torch and for the kernel: two would fight for the processors.
    if (parallel := find_parallel()) is not None:
        library.rv_set_parallel(parallel)
    return library, None


KERNEL, MISSING = _load()


def isas() -> list[str]:
    """The instruction sets that the kernel was built for and this machine has, from the plainest to the best.

    >>> set(isas()) <= {"portable", "avx2", "avx512", "avx512_bf16", "amx"}
    True
    """
    return [] if KERNEL is None else [name for n, name in enumerate(ISAS) if KERNEL.rv_isa_available(n)]


def isa() -> str | None:
    """The one in use: the best there is, unless another was forced. None without a kernel."""
    return None if KERNEL is None else ISAS[KERNEL.rv_isa()]


def force_isa(name: str | None) -> None:
    """Use this instruction set, or with None the best again: for tests, and to see what each is worth.

    >>> force_isa("mmx")    # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    rearview.errors.BadArgument: isa: expected portable, avx2, avx512, avx512_bf16, amx or None, got 'mmx'.
    """
    _force(name, "isa")


def _force(name: str | None, argument: str) -> None:
    if name is not None and name not in ISAS:
        raise BadArgument(argument, expected=f"{', '.join(ISAS)} or None", got=repr(name))
    if KERNEL is None:
        raise Unsupported("an instruction set for engine 'native'", [str(MISSING)])
    if name is not None and name not in isas():
        raise BadArgument(argument, expected=f"one that is built in and that this machine has: {', '.join(isas())}",
                          got=repr(name))  # fmt: skip
    KERNEL.rv_isa_force(-1 if name is None else ISAS.index(name))
    global ISA
    ISA = isa()


def check_environment() -> None:
    """Force what the environment names, or raise."""
    if KERNEL is not None and (wanted := os.environ.get(FORCED)):
        _force(wanted, FORCED)


def _environment_is_wrong() -> bool:
    try:
        check_environment()
    except RearviewError:
        return True
    return False


# A wrong name must not break `import rearview`; it is an error when the engine is used.
WRONG_ENVIRONMENT = _environment_is_wrong()


# What the planner asks, also inside a compiled graph, which cannot call the library: the instruction set in use, and
# whether there is a kernel for this machine's own instructions. The portable one runs anywhere, and is there to be
# right.
ISA = isa()
IS_FAST = ISA not in (None, "portable")

# Processors with matrix tiles, which PyTorch's kernels use for bfloat16.
HAS_TILES = torch.cpu._is_amx_tile_supported()
