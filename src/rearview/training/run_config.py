"""The settings of a whole run: the text, the model and the training.

>>> config = RunConfig(text="book.txt", tokenizer="bpe", layers=2, steps=500)
>>> config.steps, config.width
(500, 128)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from rearview.errors import BadArgument
from rearview.masks import Mask, full
from rearview.masks.parser import parse
from rearview.models import BERT, GPT, T5
from rearview.text import Tokenizer
from rearview.training.config import TrainConfig, changeable
from rearview.training.data import TextData
from rearview.training.factory import new_model, new_tokenizer
from rearview.training.sources import STDIN, Document, read_texts
from rearview.training.text_files import TextFiles
from rearview.training.token_file import Progress, silent, tokenizer_of_files

# The copy of a text that was read from the standard input, in the folder of the run.
KEPT_TEXT = "text.txt"
# Files with more bytes than this in all are tokenized into a file, in pieces.
IN_MEMORY = 1 << 25
# Subwords are learned from at most this many characters: their frequencies are no better known from more.
LEARNED_FROM = 1 << 27

Source = list[Document] | TextFiles


@dataclass(frozen=True, kw_only=True)
class TextConfig:
    """A text and its tokens.

    Args:
        text: a file, a folder, several of them, "-" for the standard input, or None for Python's reference text; see
            `read_texts`.
        separator: a string that divides a text into documents.
        encoding: the encoding of the text.
        validation: the fraction of the text that is held out.
        tokenizer: "bytes", "chars" or "bpe".
        vocab_size: the number of tokens of "bpe"; by default 2048.
    """

    # The text is compared by its content: a file may have moved, or have another encoding.
    text: str | tuple[str, ...] | None = changeable(None)
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
        if self.text is None or self.is_piped:
            return self
        if isinstance(self.text, str):
            return replace(self, text=os.path.abspath(self.text))
        self._check_sources()
        return replace(self, text=tuple(map(os.path.abspath, self.text)))

    def _check_sources(self) -> None:
        if isinstance(self.text, tuple) and STDIN in self.text:
            raise BadArgument("text", expected="files and folders, or the standard input alone", got=list(self.text))

    def source(self, kept: Path | None = None) -> Source:
        """The text, or `kept`, the copy of a text that was piped: documents, or files that are too large to hold."""
        self._check_sources()
        source, encoding = (self.text, self.encoding) if kept is None else (str(kept), "utf-8")
        if source is not None and source != STDIN:
            files = TextFiles.of(source, separator=self.separator, encoding=encoding)
            if files.size > IN_MEMORY:
                return files
        return read_texts(source, separator=self.separator, encoding=encoding)

    def copy_of(self, source: Source) -> bytes:
        """The content of a file from which `source(kept)` reads the same documents."""
        assert not isinstance(source, TextFiles), "the standard input is no file"
        return (self.separator or "").join(document.text for document in source).encode()

    def new_data(self, source: Source, *, kind: str, context: int, progress: Progress = silent) -> TextData:
        """The text in tokens, by a new tokenizer for a model of this kind."""

        def make(texts: Iterable[str]) -> Tokenizer:
            return new_tokenizer(self.tokenizer, texts, kind=kind, context=context, vocab_size=self.vocab_size)

        if not isinstance(source, TextFiles):
            tokenizer = make([document.text for document in source])
        elif self.tokenizer == "bytes":
            tokenizer = make([])
        else:
            settings = [self.tokenizer, self.vocab_size, kind, context]
            most = LEARNED_FROM if self.tokenizer == "bpe" else None
            tokenizer = tokenizer_of_files(source, str(settings), make, progress, most=most)
        return self.data(source, tokenizer, context=context, progress=progress)

    def data(self, source: Source, tokenizer: Tokenizer, *, context: int, progress: Progress = silent) -> TextData:
        """The text in tokens; there must be enough for rows of `context` tokens."""
        if isinstance(source, TextFiles):
            data = TextData.of_files(source, tokenizer, validation=self.validation, progress=progress)
        else:
            data = TextData.of(source, tokenizer, validation=self.validation)
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
        threads: the number of threads of torch, in the whole process; by default it is left as it is, except that a
            small model is trained on one thread.
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
