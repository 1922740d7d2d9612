"""Read a checkpoint: check every file, and restore the model and the optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from rearview.errors import BadArgument, BadFile
from rearview.models import BERT, GPT, T5
from rearview.models.checkpoint import load as load_model
from rearview.text import Tokenizer, load_tokenizer
from rearview.training.checkpoint import shards
from rearview.training.checkpoint.folders import checkpoints
from rearview.training.checkpoint.record import Record
from rearview.training.checkpoint.writer import OPTIMIZER
from rearview.training.optimizer import Optimizer


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint."""

    path: Path
    record: Record
    model: GPT | BERT | T5
    tokenizer: Tokenizer

    @property
    def is_in_shards(self) -> bool:
        """Whether several processes have written it."""
        return (self.path / shards.FOLDER).is_dir()

    @property
    def optimizer(self) -> dict[str, Tensor]:
        """The state of the optimizer, whole; it is read when it is asked for."""
        if self.is_in_shards:
            state = shards.whole_state(self.path / shards.FOLDER)
            return {name: value for name, value in state.items() if not name.startswith(shards.WEIGHTS)}
        from safetensors import SafetensorError
        from safetensors.torch import load

        path = self.path / OPTIMIZER
        try:
            return load(path.read_bytes())
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise BadFile(path, f"is damaged or not a safetensors file: {error}") from error

    def restore(self, optimizer: Optimizer, weights: Mapping[str, Tensor] | None = None) -> None:
        """Restore an optimizer; and `weights`, of which this process may have parts only."""
        if not self.is_in_shards:
            optimizer.load(self.optimizer, self.path)
            return
        named = {shards.WEIGHTS + name: value for name, value in (weights or {}).items()}
        shards.read_shards(self.path / shards.FOLDER, {**optimizer.state(), **named})

    def check_text(self, fingerprint: str) -> None:
        """Check that the run continues with the text that it was started with."""
        if fingerprint != self.record.fingerprint:
            raise BadArgument(
                "text",
                expected=f"the text of the run in {self.path.parent} (fingerprint {self.record.fingerprint[:12]})",
                got=f"another text (fingerprint {fingerprint[:12]})",
                advice="Give the same text, or start another run in another folder.",
            )

    def new_model(self) -> GPT | BERT | T5:
        """A model of its own with these weights."""
        model = type(self.model)(self.model.config)  # pyright: ignore[reportArgumentType]  # its own config
        self.copy_into(model)
        return model

    def copy_into(self, model: nn.Module) -> None:
        """Copy the weights into a model of the same shape."""
        if type(model) is not type(self.model):
            raise BadArgument(
                "model", expected=f"a {type(self.model).__name__}, as in {self.path}", got=type(model).__name__
            )
        ours, theirs = shape_of(model.config), shape_of(self.model.config)
        if differing := [name for name in theirs if ours[name] != theirs[name]]:
            raise BadArgument(
                "model",
                expected=f"the shape of {self.path}: {_named(theirs, differing)}",
                got=_named(ours, differing),
                advice="A run keeps its shape; start another run in another folder to change it.",
            )
        # Into the model's own memory: that of a file is not aligned, and the last bits of sums depend on alignment.
        model.load_state_dict(self.model.state_dict())


def read_checkpoint(path: Path) -> Checkpoint:
    """Read the checkpoint in a folder. The error for a damaged one names an older one that is not damaged."""
    try:
        record = Record.read(path)
        if damage := record.damage(path):
            raise damage
    except BadFile as error:
        raise BadFile(error.path, f"{error.why} {_instead_of(path)}") from error
    return Checkpoint(path, record, load_model(path), load_tokenizer(path))


def _instead_of(path: Path) -> str:
    for other in reversed(checkpoints(path.parent)):
        try:
            if other != path and Record.read(other).damage(other) is None:
                return f"The checkpoint {other} is not damaged; resume from it: rearview train --resume {other}"
        except BadFile:
            continue
    return "The run has no other checkpoint that is not damaged; start it again."


def shape_of(config: object) -> dict[str, str]:
    """The config of a model, with defaults filled in; as text, because masks cannot be compared with ==.

    >>> from rearview.models import GPTConfig
    >>> shape_of(GPTConfig(vocab_size=9, heads=4)) == shape_of(GPTConfig(vocab_size=9, heads=4, kv_heads=4))
    True
    """
    found = dict(vars(config))
    width, heads, layers = (found[name] for name in ("width", "heads", "layers"))
    defaults = {"hidden": 4 * width, "kv_heads": heads, "head_dim": width // heads, "decoder_layers": layers}
    found |= {name: value for name, value in defaults.items() if name in found and found[name] is None}
    shape = {name: repr(value) for name, value in found.items()}
    if "mask" in found:
        # One for all layers, or one per layer.
        masks = list(map(repr, getattr(config, "masks")))  # noqa: B009
        shape["mask"] = masks[0] if len(set(masks)) == 1 else ", ".join(masks)
    return shape


def _named(shape: dict[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} = {shape[name]}" for name in names)
