"""The model in a folder: of Rearview, or of any architecture that transformers loads. Safetensors only.

>>> import tempfile
>>> from rearview.models import GPT, GPTConfig
>>> with tempfile.TemporaryDirectory() as path:
...     GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).save_pretrained(path)
...     loaded = load(path, length=8)
>>> list(loaded.inputs["input_ids"].shape)
[2, 8]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rearview.audit.loading import BATCH, LENGTH, Loaded
from rearview.audit.loading.inputs import guess
from rearview.audit.loading.shrink import shrink
from rearview.errors import BadArgument, BadFile, MissingExtra, RearviewError, Unsupported

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
OWN = "rearview_"


def load(
    path: str, *, length: int | None = None, batch: int | None = None, config_only: bool = False, seed: int = 0
) -> Loaded:
    """The newest checkpoint of a training run, or the folder itself; with random weights for `config_only`."""
    folder = _with_config(Path(path))
    data = _config(folder)
    if not config_only:
        _refuse_pickles(folder)
    own = str(data.get("model_type", "")).startswith(OWN)
    if own and config_only:
        raise Unsupported("--config-only", [f"{folder} is a checkpoint of Rearview: audit it as it is, it is small"])
    notes: tuple[str, ...] = ()
    if own:
        from rearview.models.checkpoint import load as load_own

        model: nn.Module = load_own(folder)
    else:
        model, notes = _of_transformers(folder, data, config_only=config_only, seed=seed)
    tokens = guess(model, length=_length(model, length), batch=batch or BATCH, seed=seed)
    notes = (*notes, *_unreached(data, tokens.shape[1]))
    return Loaded(model.eval(), tokens if own else {"input_ids": tokens}, notes=notes)


def _unreached(data: dict[str, Any], length: int) -> tuple[str, ...]:
    """Windows and chunks that the inputs are too short to cross: what goes wrong there does not show."""
    inner = data.get("text_config")
    named = {**data, **inner} if isinstance(inner, dict) else data
    sizes = [
        f"{name} {value}"
        for name, value in named.items()
        if isinstance(value, int) and name.endswith(("window", "window_size", "chunk_size")) and value >= length
    ]
    if not sizes:
        return ()
    return (f"{length} positions do not cross {', '.join(sizes)}: give --length to see what happens there",)


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    runs = sorted(folder.glob("step-*/config.json"))
    if runs:
        return runs[-1].parent
    raise BadArgument(
        "TARGET", expected="a folder with config.json and safetensors", came=f"{folder}, without config.json"
    )


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadFile(file, f"cannot be read as JSON: {error}") from error
    if not isinstance(data, dict) or "model_type" not in data:
        raise BadFile(file, "does not say its model_type")
    return data


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickled:
        why = "which is a pickle, and loading one runs what is in it"
        raise BadFile(folder / pickled[0], f"the weights are only in this file, {why}. Save them as safetensors.")
    raise BadFile(folder, "has no safetensors file. With --config-only no weights are needed.")


def _of_transformers(
    folder: Path, data: dict[str, Any], *, config_only: bool, seed: int
) -> tuple[nn.Module, tuple[str, ...]]:
    try:
        import transformers
        from transformers import CONFIG_MAPPING, AutoModelForCausalLM
    except ImportError as error:
        raise MissingExtra(
            "transformers", extra="transformers", needed_for=f"Auditing the model in {folder}"
        ) from error
    kind = data["model_type"]
    if kind not in CONFIG_MAPPING:
        reasons = [f"transformers {transformers.__version__} does not know the type {kind!r}"]
        if "auto_map" in data:
            reasons.append("the folder brings code of its own, which is not run")
        raise Unsupported(f"The model in {folder}", reasons, advice="Build it yourself: rearview audit module:build")
    try:
        if config_only:
            # What config.json leaves to the defaults is shrunk as well.
            small, changes = shrink(CONFIG_MAPPING[kind].from_dict(data).to_dict())
            config = CONFIG_MAPPING[kind].from_dict(small)
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
            return model, ("weights are random", *_told(changes))
        with _quietly(transformers):
            model = AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
        return model, ()
    except RearviewError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise Unsupported(
            f"The model in {folder}", [f"transformers cannot build it: {type(error).__name__}: {text}"]
        ) from error


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Without the bar that transformers draws while it loads."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _told(changes: list[str]) -> tuple[str, ...]:
    if not changes:
        return ("nothing was shrunk: it is small as it is",)
    return (f"shrunk, in width and depth only: {', '.join(changes)}",)


def _length(model: nn.Module, length: int | None) -> int:
    config: Any = getattr(model, "config", None)
    most = next((value for name in ("max_position_embeddings", "n_positions", "context", "max_seq_len")
                 if isinstance(value := getattr(config, name, None), int) and value > 0), None)  # fmt: skip
    if length is not None and most is not None and length > most:
        raise BadArgument("--length", expected=f"at most {most}, as many as the model has positions for", came=length)
    return length or min(LENGTH, most or LENGTH)
