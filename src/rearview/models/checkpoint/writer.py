"""save(): write a model to a folder as config.json and safetensors. Each file is replaced atomically."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType

from torch import Tensor

from rearview.errors import BadArgument, MissingExtra
from rearview.files import write_whole
from rearview.models.checkpoint.reader import ARCHITECTURES
from rearview.models.checkpoint.tensors import INDEX, WHOLE
from rearview.models.model import Model


def save(model: Model, folder: str | os.PathLike[str], *, max_shard_bytes: int = 5 * 10**9) -> None:
    """Write the files that `load` and transformers read, in several shards if they exceed `max_shard_bytes`."""
    try:
        from safetensors.torch import save as to_bytes
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for="Reading and writing models") from error
    architecture = _architecture_of(model)
    # Before anything is written, since a mask without an expression raises here.
    data = architecture.to_json(model.config)
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadArgument(
            "folder", expected="a folder that can be created", got=f"{error.strerror} ({path})"
        ) from error
    tensors = _stored_tensors(model, architecture)
    data["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    shards = _shards(tensors, max_shard_bytes)
    # The config is written last: a folder with a config is a complete model.
    for name, shard in shards.items():
        write_whole(path / name, to_bytes(shard, metadata={"format": "pt"}))
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())},
            "weight_map": {tensor: name for name, shard in shards.items() for tensor in shard},
        }
        write_whole(path / INDEX, _json(index))
    # An earlier save must not be read instead.
    (path / (WHOLE if len(shards) > 1 else INDEX)).unlink(missing_ok=True)
    write_whole(path / "config.json", _json(data))


def _architecture_of(model: object) -> ModuleType:
    for architecture in ARCHITECTURES:
        if isinstance(model, architecture.Model):
            return architecture
    raise BadArgument("model", expected="a GPT, BERT or T5 of rearview.models", got=type(model).__name__)


def _stored_tensors(model: Model, architecture: ModuleType) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, stored in architecture.names(model.config).items():
        found |= stored.write(model.get_parameter(name).detach().cpu())
    return found


def _shards(tensors: dict[str, Tensor], most: int) -> dict[str, dict[str, Tensor]]:
    groups: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if groups[-1] and size + tensor.nbytes > most:
            groups.append({})
            size = 0
        groups[-1][name] = tensor
        size += tensor.nbytes
    if len(groups) == 1:
        return {WHOLE: groups[0]}
    return {f"model-{n:05}-of-{len(groups):05}.safetensors": group for n, group in enumerate(groups, start=1)}


def _json(data: object) -> bytes:
    return (json.dumps(data, indent=2) + "\n").encode()
