"""The model in a folder: a checkpoint of Rearview, or of any architecture in transformers. Safetensors only.

>>> import tempfile
>>> from rearview.models import GPT, GPTConfig
>>> with tempfile.TemporaryDirectory() as path:
...     GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).save_pretrained(path)
...     loaded = load(path, length=8)
>>> list(loaded.inputs["input_ids"].shape)
[2, 8]
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rearview.auditing.loading import BATCH, LENGTH, Loaded
from rearview.auditing.loading.inputs import guess
from rearview.auditing.loading.shrinking import shrink
from rearview.auditing.model.subject import parameter_names
from rearview.codec import parse_json, read_bytes
from rearview.errors import BadArgument, BadFile, MissingExtra, RearviewError, Unsupported

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
OWN = "rearview_"
LARGEST_CONFIG = 16 * 2**20


def load(
    path: str, *, length: int | None = None, batch: int | None = None, config_only: bool = False, seed: int = 0
) -> Loaded:
    """Load the checkpoint in a folder, or the newest of a training run; with random weights for `config_only`."""
    folder = _with_config(Path(path))
    data = _config(folder)
    if not config_only:
        _refuse_pickles(folder)
    own = str(data.get("model_type", "")).startswith(OWN)
    if own and config_only:
        raise Unsupported(
            "--config-only", [f"{folder} is a checkpoint of Rearview, which is small enough to audit as it is"]
        )
    notes: tuple[str, ...] = ()
    if own:
        from rearview.models.checkpoint import load as load_own

        model: nn.Module = load_own(folder)
    else:
        model, notes = _of_transformers(folder, data, config_only=config_only, seed=seed)
    tokens = guess(model, length=_length(model, length), batch=batch or BATCH, seed=seed)
    notes = (*notes, *_unreached(data, tokens.shape[1]))
    names = parameter_names(model)
    for source, target in (("input_ids", "decoder_input_ids"), ("tokens", "decoder_tokens")):
        if {source, target} <= names and (own or getattr(model.config, "is_encoder_decoder", False)):
            # The decoder is audited. Its source has another length, so that neither is taken for the other.
            inputs = {source: tokens.flip(1)[:, :-1], target: tokens}
            notes = (*notes, f"the decoder is audited: {target} vary, {source} stay as they are")
            return Loaded(model.eval(), inputs, options={"vary": target}, notes=notes)
    return Loaded(model.eval(), tokens if own else {"input_ids": tokens}, notes=notes)


def _unreached(data: dict[str, Any], length: int) -> tuple[str, ...]:
    """A note about windows and chunks that the inputs do not cross: faults there do not show."""
    inner = data.get("text_config")
    named = {**data, **inner} if isinstance(inner, dict) else data
    sizes = [
        f"{name} {value}"
        for name, value in named.items()
        if isinstance(value, int) and name.endswith(("window", "window_size", "chunk_size")) and value >= length
    ]
    if not sizes:
        return ()
    return (f"{length} positions do not exceed {', '.join(sizes)}: give --length to audit beyond",)


def _with_config(folder: Path) -> Path:
    if (folder / "config.json").is_file():
        return folder
    runs = sorted(folder.glob("step-*/config.json"))
    if runs:
        return runs[-1].parent
    raise BadArgument(
        "MODULE:FUNCTION|DIR",
        expected="a folder with config.json and safetensors",
        got=f"{folder}, without config.json",
    )


def _config(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    data = parse_json(read_bytes(file, most=LARGEST_CONFIG), file)
    if not isinstance(data, dict) or "model_type" not in data:
        raise BadFile(file, "has no model_type")
    return data


def _refuse_pickles(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickled = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickled:
        why = "which is a pickle, and loading a pickle runs the code in it"
        raise BadFile(folder / pickled[0], f"the weights are only in this file, {why}. Save them as safetensors.")
    raise BadFile(folder, "has no safetensors file. --config-only needs no weights.")


def _of_transformers(
    folder: Path, data: dict[str, Any], *, config_only: bool, seed: int
) -> tuple[nn.Module, tuple[str, ...]]:
    try:
        import transformers
        from transformers import CONFIG_MAPPING
    except ImportError as error:
        raise MissingExtra(
            "transformers", extra="transformers", needed_for=f"Auditing the model in {folder}"
        ) from error
    kind = data["model_type"]
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        reasons = [f"transformers {transformers.__version__} does not know the type {kind!r}"]
        if "auto_map" in data:
            reasons.append("the folder has code of its own, which is not run")
        raise Unsupported(f"The model in {folder}", reasons, advice="Build it yourself: rearview audit module:build")
    builder = _builder(transformers, data)
    try:
        if config_only:
            # With the defaults, which are shrunk as well.
            small, changes = shrink(CONFIG_MAPPING[kind].from_dict(data).to_dict())
            config = CONFIG_MAPPING[kind].from_dict(small)
            torch.manual_seed(seed)
            model = builder.from_config(config, trust_remote_code=False)
            return model, ("weights are random", *_notes(changes))
        with _quietly(transformers):
            model = builder.from_pretrained(
                folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
            )
        return model, ()
    except RearviewError:
        raise
    except Exception as error:
        # transformers may raise anything for a configuration or weights that it does not support.
        text = " ".join(str(error).split())[:300]
        raise Unsupported(
            f"The model in {folder}", [f"transformers cannot build it: {type(error).__name__}: {text}"]
        ) from error


def _builder(transformers: Any, data: dict[str, Any]) -> Any:
    """The class that builds a model of this type: one that predicts the next token, alone or after an encoder."""
    kind = type(transformers.CONFIG_MAPPING[data["model_type"]]())
    architectures = data.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else ""
    alone = kind in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    after_encoder = kind in transformers.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING
    if after_encoder and (not alone or str(named).endswith("ForConditionalGeneration")):
        return transformers.AutoModelForSeq2SeqLM
    if not alone:
        raise Unsupported(
            f"The model of type {data['model_type']!r}",
            ["transformers has no version of it that predicts the next token"],
            advice="Build it yourself, with inputs and vary: rearview audit module:build",
        )
    return transformers.AutoModelForCausalLM


@contextmanager
def _quietly(transformers: Any) -> Iterator[None]:
    """Hide the progress bar of transformers."""
    logging = transformers.utils.logging
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _notes(changes: list[str]) -> tuple[str, ...]:
    if not changes:
        return ("nothing was shrunk: the model is small as it is",)
    return (f"shrunk, in width and depth only: {', '.join(changes)}",)


def _length(model: nn.Module, length: int | None) -> int:
    config: Any = getattr(model, "config", None)
    most = next((value for name in ("max_position_embeddings", "n_positions", "context", "max_seq_len")
                 if isinstance(value := getattr(config, name, None), int) and value > 0), None)  # fmt: skip
    if length is not None and most is not None and length > most:
        raise BadArgument("--length", expected=f"at most {most}, the number of positions of the model", got=length)
    return length or min(LENGTH, most or LENGTH)
