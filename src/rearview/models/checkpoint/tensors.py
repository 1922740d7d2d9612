"""The tensors of a folder: one safetensors file, or several with an index.

>>> import tempfile
>>> with Tensors("nowhere"):
...     pass
Traceback (most recent call last):
rearview.errors.BadArgument: folder: expected model.safetensors in nowhere, got neither that nor an index of shards.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from rearview.errors import BadArgument, BadFile, MissingExtra

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
# A bare GPT2Model or BertModel is saved without the prefix that its tensors have inside a larger model.
PREFIXES = ("transformer.", "bert.")


class Tensors(Mapping[str, Tensor]):
    """A mapping from names to tensors, which are read on access. Use it in a `with` statement."""

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._open = ExitStack()
        self._file_of: dict[str, Any] = {}

    def __enter__(self) -> Tensors:
        for path in self._files():
            try:
                file = self._open.enter_context(_safe_open()(path, framework="pt"))
            except FileNotFoundError:
                self._open.close()
                raise BadFile(path, "is listed in the index of shards and does not exist") from None
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
                return self._file_of[known].get_tensor(known)
        raise BadFile(self.folder, f"has no tensor {name}, which its config.json requires")

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
        try:
            shards = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise BadFile(index, f"is not an index of shards: {error}") from error
        for shard in shards:
            # A shard must be a file of this folder; other paths are not followed.
            if Path(shard).name != shard:
                raise BadFile(index, f"names a shard outside the folder: {shard}")
        return [self.folder / shard for shard in sorted(shards)]


def _safe_open() -> Any:
    try:
        from safetensors import safe_open
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for="Reading and writing models") from error
    return safe_open
