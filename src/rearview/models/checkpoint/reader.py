"""load(): a model from a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, overload

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rearview.codec import brief, parse_json, read_bytes
from rearview.drawing.cells import cut
from rearview.errors import BadArgument, BadExpression, BadFile, Unsupported
from rearview.models.bert import BERT
from rearview.models.checkpoint import bert, gpt, t5
from rearview.models.checkpoint.tensors import Tensors
from rearview.models.gpt import GPT
from rearview.models.model import Model
from rearview.models.t5 import T5

M = TypeVar("M", bound=Model)

# Each module has Model, types (the model_type values it reads), from_json, to_json and names.
ARCHITECTURES = (gpt, bert, t5)
# The largest config.json that is read; real ones have a few kilobytes.
LARGEST_CONFIG = 16 * 2**20
LONGEST_REASON = 500


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
    kind: type[Model] | None = None,
    *,
    dtype: torch.dtype | None = None,
    device: str | None = None,
) -> Model:
    """Load the model of a folder, in evaluation mode.

    Args:
        kind: the class that is expected; another one raises `BadArgument`.
        dtype: the dtype of the parameters, by default that of the file; the widest, if its tensors differ.
    """
    path = Path(folder)
    data = read_config(path)
    architecture = architecture_of(data, path)
    if kind is not None and architecture.Model is not kind:
        got = f"{data['model_type']!r}, a {architecture.Model.__name__}"
        raise BadArgument("folder", expected=f"a {kind.__name__}", got=got)
    with Tensors(path) as tensors:
        try:
            config = architecture.from_json(data, tensors.names)
        except (BadArgument, BadExpression) as error:
            # It may quote a text of any length.
            raise BadFile(path / "config.json", cut(str(error), LONGEST_REASON)) from error
        model = _empty(architecture, config, path, len(tensors))
        state: dict[str, Tensor] = {}
        for name, stored in architecture.names(config).items():
            found = stored.read(tensors)
            wanted = model.get_parameter(name).shape
            if found.shape != wanted:
                got = f"{list(found.shape)} ({', '.join(stored.names)})"
                raise BadFile(path, f"the config requires {name} of shape {list(wanted)}, the file has {got}")
            state[name] = found
        common = dtype or reduce(torch.promote_types, (tensor.dtype for tensor in state.values()))
        for name, tensor in state.items():
            state[name] = tensor.to(device=device, dtype=common).contiguous()
    return _filled(model, state)


def _empty(architecture: ModuleType, config: Any, path: Path, tensors: int) -> Model:
    """The model on the meta device, without memory and random numbers: every parameter comes from the file."""
    for name in ("layers", "decoder_layers"):
        # Each layer has tensors of its own. Building the layers of a number like 10**9 would take hours.
        if (getattr(config, name, None) or 0) > tensors:
            raise BadFile(
                path, f"the config has {getattr(config, name):,} layers, and the file has {tensors:,} tensors"
            )
    try:
        with torch.device("meta"), _Uninitialized():
            return architecture.Model(config)
    except RuntimeError as error:
        raise BadFile(path / "config.json", f"no tensor can have these sizes: {error}") from error


class _Uninitialized(TorchFunctionMode):
    """Within, the functions of torch.nn.init leave tensors as they are.

    There is nothing to initialize on the meta device, and its random functions import torch's compiler, which takes
    longer than to load a small model.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return given["tensor"] if "tensor" in given else args[0]
        return func(*args, **given)


def read_config(path: Path) -> dict[str, Any]:
    """The folder's config.json."""
    if not path.is_dir():
        raise BadArgument(
            "folder", expected="a folder with config.json and safetensors", got=f"{path}, which is not a folder"
        )
    file = path / "config.json"
    if not file.exists():
        raise BadArgument(
            "folder", expected="a folder with config.json and safetensors", got=f"{path}, without config.json"
        )
    data = parse_json(read_bytes(file, most=LARGEST_CONFIG), file)
    if not isinstance(data, dict):
        raise BadFile(file, f"expected one JSON object, got {brief(data)}")
    return data


def architecture_of(data: dict[str, Any], path: Path) -> ModuleType:
    """The module of `ARCHITECTURES` that reads this config."""
    for architecture in ARCHITECTURES:
        if data.get("model_type") in architecture.types:
            return architecture
    known = ", ".join(name for architecture in ARCHITECTURES for name in architecture.types)
    reason = f"its model_type is {brief(data.get('model_type'))}; supported are {known}"
    raise Unsupported(f"The model in {path} cannot be loaded", [reason])


def _filled(model: Model, state: dict[str, torch.Tensor]) -> Model:
    config: Any = model.config
    # A tied head shares the tensor of the embedding; assigning by name would make two tensors of it.
    model.load_state_dict(state, strict=False, assign=True)
    if getattr(config, "tied", True):
        model.get_submodule("head").weight = model.get_submodule("tokens").weight
    left = [name for name, parameter in model.named_parameters() if parameter.is_meta]
    assert not left, f"names() lacks {left}"
    return model.eval()
