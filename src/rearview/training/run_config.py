"""The settings of a whole run: the text, the model and the training.

>>> config = RunConfig(text="book.txt", tokenizer="bpe", layers=2, steps=500)
>>> config.steps, config.width
(500, 128)
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from rearview.masks import Mask, full
from rearview.masks.parser import parse
from rearview.models import BERT, GPT, T5
from rearview.text import Tokenizer
from rearview.training.config import TrainConfig, changeable
from rearview.training.data import TextData
from rearview.training.factory import new_model, new_tokenizer
from rearview.training.sources import STDIN, Document, read_texts

# The copy of a text that was read from the standard input, in the folder of the run.
KEPT_TEXT = "text.txt"


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A text and its tokens.

    Args:
        text: a file, a folder, "-" for the standard input, or None for Python's reference text; see `read_texts`.
        separator: a string that divides a text into documents.
        encoding: the encoding of the text.
        validation: the fraction of the text that is held out.
        tokenizer: "bytes", "chars" or "bpe".
        vocab_size: the number of tokens of "bpe"; by default 2048.
    """

    # The text is compared by its content: a file may have moved, or have another encoding.
    text: str | None = changeable(None)
    separator: str | None = None
    encoding: str = changeable("utf-8")
    validation: float = 0.1
    tokenizer: str = "bytes"
    vocab_size: int | None = None

    @property
    def is_piped(self) -> bool:
        """Whether the text is read from the standard input, which can be read once only."""
        return self.text == STDIN

    def with_absolute_path(self) -> Self:
        """The same settings, valid in any working directory."""
        return self if self.text is None or self.is_piped else replace(self, text=os.path.abspath(self.text))

    def documents(self, kept: Path | None = None) -> list[Document]:
        """The documents of the text, or of `kept`, the copy of a text that was piped."""
        source, encoding = (self.text, self.encoding) if kept is None else (kept, "utf-8")
        return read_texts(source, separator=self.separator, encoding=encoding)

    def copy_of(self, documents: list[Document]) -> bytes:
        """The content of a file from which `documents(kept)` reads the same documents."""
        return (self.separator or "").join(document.text for document in documents).encode()

    def new_data(self, documents: list[Document], *, kind: str, context: int) -> TextData:
        """The documents in tokens, by a new tokenizer for a model of this kind."""
        texts = [document.text for document in documents]
        tokenizer = new_tokenizer(self.tokenizer, texts, kind=kind, context=context, vocab_size=self.vocab_size)
        return self.data(documents, tokenizer, context=context)

    def data(self, documents: list[Document], tokenizer: Tokenizer, *, context: int) -> TextData:
        """The documents in tokens; there must be enough for rows of `context` tokens."""
        data = TextData.of(documents, tokenizer, validation=self.validation)
        data.check_context(context)
        return data


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The size of a model; see `GPTConfig`."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    positions: Literal["learned", "rotary"] = "learned"
    dropout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunConfig(TextConfig, ModelConfig, TrainConfig):
    """What `Run.start` needs to know: the settings of `TextConfig`, `ModelConfig` and `TrainConfig`, and these.

    Args:
        model: "gpt", "bert" or "t5".
        kv_heads: the number of key and value heads of a GPT; by default as many as `heads`.
        mask: the mask of a GPT as an expression, or "none" for no mask.
        device: a device of torch, or "auto" for a GPU if there is one.
        threads: the number of threads of torch, in the whole process; by default it is left as it is.
        tensorboard: whether to write event files for TensorBoard.
    """

    context: int = 128
    model: str = "gpt"
    kv_heads: int | None = None
    mask: str = "causal()"
    device: str = changeable("auto")
    threads: int | None = changeable(None)
    tensorboard: bool = changeable(False)

    def new_model(self, tokenizer: Tokenizer) -> GPT | BERT | T5:
        """The model, with weights that depend on the seed alone."""
        return new_model(
            self.model,
            tokenizer,
            context=self.context,
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            kv_heads=self.kv_heads,
            positions=self.positions,
            mask=self._mask(),
            dropout=self.dropout,
            seed=self.seed,
        )

    def _mask(self) -> Mask:
        return full() if self.mask.strip().lower() == "none" else parse(self.mask)
