"""A model with its tokenizer: from a folder of Rearview or of any architecture in transformers, or from memory.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> model = TextModel("mine", GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=2, width=8)), ByteTokenizer())
>>> model.context, model.read("too long a text")[1]
(8, 'reading the first 8 of 15 tokens, because the model has 8 positions')
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.models import T5
from rearview.text import Tokenizer, load_tokenizer, token_labels


@dataclass(frozen=True, eq=False)
class TextModel:
    """A model and the tokenizer of its text."""

    name: str
    model: nn.Module
    tokenizer: Tokenizer

    @property
    def context(self) -> int | None:
        """The largest number of positions that the model has; None if any number will do."""
        return context_of(self.model)

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next(self.model.parameters()).device

    def read(self, text: str, *, length: int | None = None, reserve: int = 0) -> tuple[list[int], str]:
        """The tokens of a text, at most `length`, and a remark if some were left out.

        `reserve` positions of the model are left free, for tokens that it generates.
        """
        ids = self.tokenizer.encode(text, specials=True)
        if not ids:
            raise BadArgument("text", expected="a text of at least one token", got="an empty text")
        room = self.context
        if length is not None and room is not None and length > room:
            raise BadArgument("length", expected=f"at most {room}, the number of positions of the model", got=length)
        most = length or (None if room is None else max(1, room - reserve))
        if most is None or len(ids) <= most:
            return ids, ""
        why = "as asked" if length else f"because the model has {room:,} positions"
        return ids[:most], f"reading the first {most:,} of {len(ids):,} tokens, {why}"

    def labels(self, ids: list[int]) -> list[str]:
        """A readable label per token."""
        return token_labels(self.tokenizer, ids)

    def batch(self, ids: list[int]) -> Tensor:
        """The tokens as a batch of one, on the device of the model."""
        return torch.tensor([ids], device=self.device)


def context_of(model: nn.Module) -> int | None:
    """The largest number of positions that a model has; None if any number will do."""
    if isinstance(model, T5):
        return None
    config: Any = getattr(model, "config", None)
    names = ("max_position_embeddings", "n_positions", "context", "max_seq_len")
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


def load_text_model(folder: str | os.PathLike[str]) -> TextModel:
    """The model and the tokenizer in a folder, on a GPU if there is one."""
    from rearview.auditing.loading import folder as checkpoints
    from rearview.models.checkpoint import load as load_own
    from rearview.models.checkpoint.reader import ARCHITECTURES, read_config
    from rearview.training.checkpoint.folders import model_folder

    inside = model_folder(folder)
    known = {name for architecture in ARCHITECTURES for name in architecture.types}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # A list, which may hold anything that a file says.
    if read_config(inside).get("model_type") in list(known):
        model: nn.Module = load_own(inside, device=device)
    else:
        model = checkpoints.load(str(inside)).model.to(device)
    return TextModel(Path(folder).resolve().name, model.eval(), load_tokenizer(inside))
