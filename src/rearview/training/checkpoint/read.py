"""Read a checkpoint back: every file checked, the model and the optimizer put where they were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from rearview.errors import BadArgument, BadFile
from rearview.models.checkpoint import load as load_model
from rearview.text import Tokenizer, load_tokenizer
from rearview.training.checkpoint.folders import checkpoints
from rearview.training.checkpoint.record import Record
from rearview.training.checkpoint.write import OPTIMIZER


@dataclass(frozen=True)
class Resumed:
    """What a checkpoint holds."""

    path: Path
    record: Record
    model: Any
    tokenizer: Tokenizer
    optimizer: dict[str, Tensor]

    def check_text(self, fingerprint: str) -> None:
        """Is it the text that the run began with?"""
        if fingerprint != self.record.fingerprint:
            raise BadArgument(
                "text",
                expected=f"what the run in {self.path.parent} began with (fingerprint {self.record.fingerprint[:12]})",
                came=f"another (fingerprint {fingerprint[:12]})",
                advice="Give it the same text, or start another run in another folder.",
            )

    def into(self, model: Any) -> None:
        """Copy the weights into a model of the same shape."""
        if type(model) is not type(self.model):
            raise BadArgument(
                "model", expected=f"a {type(self.model).__name__}, as in {self.path}", came=type(model).__name__
            )
        ours, theirs = shape_of(model.config), shape_of(self.model.config)
        if differing := [name for name in theirs if ours[name] != theirs[name]]:
            raise BadArgument(
                "model",
                expected=f"the shape of {self.path}: {_named(theirs, differing)}",
                came=_named(ours, differing),
                advice="A run keeps its shape: give the same, or start another run in another folder.",
            )
        # Into the model's own memory: a file's is not aligned, and last bits of sums depend on that.
        model.load_state_dict(self.model.state_dict())


def read_checkpoint(path: Path) -> Resumed:
    """The checkpoint in a folder. A damaged one is named, with the one before it that is whole."""
    try:
        record = Record.read(path)
        if damage := record.damage(path):
            raise damage
    except BadFile as error:
        raise BadFile(error.path, f"{error.why} {_instead_of(path)}") from error
    from safetensors.torch import load

    optimizer = load((path / OPTIMIZER).read_bytes())
    return Resumed(path, record, load_model(path), load_tokenizer(path), optimizer)


def _instead_of(path: Path) -> str:
    for other in reversed(checkpoints(path.parent)):
        try:
            if other != path and Record.read(other).damage(other) is None:
                return f"The checkpoint {other} is whole: go on from it with rearview train --resume {other}"
        except BadFile:
            continue
    return "No other checkpoint of this run is whole; start it again."


def shape_of(config: Any) -> dict[str, str]:
    """A model's config, with what it says by leaving out; as text, since masks have no equality of their own.

    >>> from rearview.models import GPTConfig
    >>> shape_of(GPTConfig(vocab_size=9, heads=4)) == shape_of(GPTConfig(vocab_size=9, heads=4, kv_heads=4))
    True
    """
    found = dict(vars(config))
    meant = {"hidden": 4 * config.width, "kv_heads": config.heads, "head_dim": config.width // config.heads}
    meant["decoder_layers"] = config.layers
    found |= {name: value for name, value in meant.items() if name in found and found[name] is None}
    shape = {name: repr(value) for name, value in found.items()}
    if "mask" in found:
        # One for all layers, or one for each.
        masks = list(map(repr, config.masks))
        shape["mask"] = masks[0] if len(set(masks)) == 1 else ", ".join(masks)
    return shape


def _named(shape: dict[str, str], names: list[str]) -> str:
    return ", ".join(f"{name} = {shape[name]}" for name in names)
