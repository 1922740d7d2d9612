"""Hashes of the weights and the code of a model: two reports with the same hashes are about the same model.

>>> import torch
>>> from rearview.auditing.model.fingerprint import fingerprint_of
>>> torch.manual_seed(0)
<torch._C.Generator object at ...>
>>> one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
>>> fingerprint_of(one)["weights"] == fingerprint_of(other)["weights"]
False
>>> fingerprint_of(one)["code"] == fingerprint_of(other)["code"]
True
"""

from __future__ import annotations

import ctypes
import hashlib
import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rearview.auditing.model.state import bytes_of, modules_of

# Larger models are not hashed unless it is asked for: it takes about a second per gigabyte.
MOST_BYTES = 1 << 28


def fingerprint_of(model: object, *functions: object, always: bool = False) -> dict[str, str]:
    """SHA-256 of the weights, by name, dtype, shape and bytes, and of the source files of the classes and functions.

    An entry is empty where there is nothing to hash, or where the weights are large and `always` is False.
    """
    modules = modules_of(model)
    tensors: dict[str, Tensor] = dict(modules[0].state_dict()) if modules else {}
    small = sum(bytes_of(value) for value in tensors.values() if isinstance(value, Tensor)) <= MOST_BYTES
    code = [type(module) for module in modules] + [one for one in (model, *functions) if not isinstance(one, nn.Module)]
    return {"weights": _of_tensors(tensors) if tensors and (small or always) else "", "code": _of_files(code)}


def _of_tensors(tensors: dict[str, Any]) -> str:
    found = hashlib.sha256()
    for name, value in sorted(tensors.items()):
        if isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta:
            found.update(f"{name} {value.dtype} {list(value.shape)}\n".encode())
            held = value.detach().cpu().contiguous()
            # Without numpy, which torch may be installed without.
            found.update((ctypes.c_char * held.nbytes).from_address(held.data_ptr()) if held.nbytes else b"")
    return found.hexdigest()


def _of_files(owners: Iterable[Any]) -> str:
    files: set[str] = set()
    for owner in owners:
        try:
            files.add(inspect.getsourcefile(inspect.unwrap(owner)) or "")
        except (TypeError, ValueError, OSError):
            # A builtin, or a class without a file.
            continue
    # By content, not by path: the same code in another folder is the same code.
    digests = sorted(hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if Path(file).is_file())
    return hashlib.sha256("\n".join(digests).encode()).hexdigest() if digests else ""
