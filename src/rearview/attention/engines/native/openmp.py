"""The OpenMP runtime that torch has loaded: its threads are there and warm, and the kernel runs on the same.

>>> address = find_parallel()
>>> address is None or address > 0
True
"""

from __future__ import annotations

import ctypes
import os
import re
from pathlib import Path

import torch

# libgomp of GNU; libiomp5 and libomp of Intel and LLVM, which speak GNU's interface too.
RUNTIME = re.compile(r"lib(gomp|iomp5|omp)\b[^/]*$")


def find_parallel() -> int | None:
    """The address of `GOMP_parallel` in torch's own runtime, or None when it cannot be told which that is."""
    found = _loaded()
    package = Path(torch.__file__).resolve().parent
    own = [path for path in found if package in path.parents or path.parent.name == "torch.libs"]
    # Several runtimes in one process happen (scikit-learn brings its own); only torch's is wanted.
    candidates = own or found
    if len(candidates) != 1:
        return None
    try:
        # Already loaded, or not at all: a second runtime would be worse than none.
        runtime = ctypes.CDLL(str(candidates[0]), mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        return ctypes.cast(runtime.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _loaded() -> list[Path]:
    """The OpenMP runtimes that may be in this process."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
        files = {line.split(maxsplit=5)[5] for line in lines if "omp" in line and line.count("/")}
    except (OSError, IndexError):
        files = {str(path) for path in Path(torch.__file__).parent.glob("lib/*omp*")}
    return sorted({Path(file).resolve() for file in files if RUNTIME.search(file)})
