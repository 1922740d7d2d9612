"""The tensors of a folder: one safetensors file, or several with an index.

>>> import tempfile
>>> with Tensors("nowhere"):
...     pass
Traceback (most recent call last):
rearview.errors.BadArgument: folder: expected model.safetensors in nowhere, got neither that nor an index of shards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rearview.codec import brief, check_regular, parse_json, read_bytes
from rearview.errors import BadArgument, BadFile, MissingExtra

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# A bare GPT2Model or BertModel is saved without the prefix that its tensors have inside a larger model.
PREFIXES = ("transformer.", "bert.")
# What a parameter can be stored as. Integers and float8 are quantized weights, whose scales are not read.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
LARGEST_INDEX = 64 * 2**20


class Tensors(Mapping[str, Tensor]):
    """A mapping from names to tensors, which are read on access. Use it in a `with` statement."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._open = ExitStack()
        self._file_of: dict[str, Any] = {}

    def __enter__(self) -> Tensors:
        for path in self._files():
            try:
                check_regular(path)
                file = self._open.enter_context(_safe_open()(path, framework="pt"))
            except FileNotFoundError:
                self._open.close()
                raise BadFile(path, "is listed in the index of shards and does not exist") from None
            except BadFile:
                self._open.close()
                raise
            except Exception as error:  # safetensors raises an exception type of its own.
                self._open.close()
                raise BadFile(path, f"is damaged or not a safetensors file: {error}") from error
            self._file_of |= dict.fromkeys(file.keys(), file)
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._file_of)

    def __getitem__(self, name: str) -> Tensor:
        bare = next((name.removeprefix(prefix) for prefix in PREFIXES if name.startswith(prefix)), name)
        for known in (name, bare):
            if known in self._file_of:
                return self._tensor(known)
        raise BadFile(self.folder, f"has no tensor {name}, which its config.json requires")

    def _tensor(self, name: str) -> Tensor:
        try:
            tensor = self._file_of[name].get_tensor(name)
        except Exception as error:  # safetensors raises an exception type of its own, also for dtypes unknown to torch.
            raise BadFile(self.folder, f"the tensor {name} cannot be read: {error}") from error
        if tensor.dtype not in DTYPES:
            names = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
            got = str(tensor.dtype).removeprefix("torch.")
            raise BadFile(self.folder, f"the tensor {name}: expected one of {names}, got {got}")
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def _files(self) -> list[Path]:
        if (self.folder / WHOLE).exists():
            return [self.folder / WHOLE]
        index = self.folder / INDEX
        if not index.exists():
            advice = ""
            if (self.folder / "pytorch_model.bin").exists():
                advice = (
                    "pytorch_model.bin is a pickle, which can run code and is never loaded; "
                    "save the model as safetensors."
                )
            got = "neither that nor an index of shards"
            raise BadArgument("folder", expected=f"{WHOLE} in {self.folder}", got=got, advice=advice)
        data = parse_json(read_bytes(index, most=LARGEST_INDEX), index)
        shards = data.get("weight_map") if isinstance(data, dict) else None
        if not isinstance(shards, dict) or not shards:
            raise BadFile(index, f"weight_map: expected an object from tensors to shards, got {brief(shards)}")
        for shard in shards.values():
            # A shard must be a file of this folder; other paths are not followed.
            if not isinstance(shard, str) or Path(shard).name != shard:
                raise BadFile(index, f"weight_map: expected the name of a file in this folder, got {brief(shard)}")
        return [self.folder / shard for shard in sorted(set(shards.values()))]


def _safe_open() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for="Reading and writing models") from error
    return safe_open
