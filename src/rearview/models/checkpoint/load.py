"""Read a model from a folder."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

import torch
from torch import nn

from rearview.errors import BadArgument, BadFile, Unsupported
from rearview.models.bert import BERT
from rearview.models.checkpoint import bert, gpt, t5
from rearview.models.checkpoint.tensors import Tensors
from rearview.models.gpt import GPT
from rearview.models.model import Model
from rearview.models.t5 import T5

M = TypeVar("M", bound=Model)

# One module for each architecture: Model, types, from_json, to_json, names.
ARCHITECTURES = (gpt, bert, t5)


@overload
def load(
    folder: str | os.PathLike[str], *, dtype: torch.dtype | None = ..., device: str | None = ...
) -> GPT | BERT | T5: ...


@overload
def load(
    folder: str | os.PathLike[str], kind: type[M], *, dtype: torch.dtype | None = ..., device: str | None = ...
) -> M: ...


def load(
    folder: str | os.PathLike[str],
    kind: type[nn.Module] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> Any:
    """The model in a folder, in evaluation mode; of the `kind` that is asked for, if any.

    Its numbers keep the file's dtype unless `dtype` is given.
    """
    path = Path(folder)
    data = read_config(path)
    architecture = architecture_of(data, path)
    if kind is not None and architecture.Model is not kind:
        came = f"{data['model_type']!r}, a {architecture.Model.__name__}"
        raise BadArgument("folder", expected=f"a {kind.__name__}", came=came)
    with Tensors(path) as tensors:
        config = architecture.from_json(data, tensors.names)
        # Made without memory or random numbers; every tensor is then taken from the file.
        with torch.device("meta"):
            model = architecture.Model(config)
        state = {}
        for name, theirs in architecture.names(config).items():
            found = theirs.read(tensors)
            wanted = model.get_parameter(name).shape
            if found.shape != wanted:
                came = f"{list(found.shape)} ({', '.join(theirs.names)})"
                raise BadFile(path, f"the config asks for {name} of shape {list(wanted)}, the file has {came}")
            state[name] = found.to(device=device, dtype=dtype or found.dtype).contiguous()
    return _filled(model, state)


def read_config(path: Path) -> dict[str, Any]:
    """The folder's config.json."""
    if not path.is_dir():
        raise BadArgument("folder", expected="a folder with config.json and safetensors", came=f"{path}, which is none")
    file = path / "config.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadArgument(
            "folder", expected="a folder with config.json and safetensors", came=f"{path}, without config.json"
        ) from None
    except (OSError, ValueError) as error:
        raise BadFile(file, f"cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadFile(file, "should hold one JSON object")
    return data


def architecture_of(data: dict[str, Any], path: Path) -> ModuleType:
    for architecture in ARCHITECTURES:
        if data.get("model_type") in architecture.types:
            return architecture
    known = ", ".join(name for architecture in ARCHITECTURES for name in architecture.types)
    raise Unsupported(f"The model in {path} cannot be read", [f"its type is {data.get('model_type')!r}, not {known}"])


def _filled(model: nn.Module, state: dict[str, torch.Tensor]) -> nn.Module:
    config: Any = model.config
    # The embedding and a tied head are one tensor, and assigning by name would make them two.
    model.load_state_dict(state, strict=False, assign=True)
    if getattr(config, "tied", True):
        model.get_submodule("head").weight = model.get_submodule("tokens").weight
    left = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    assert not left, f"names() leaves out {left}"
    return model.eval()
