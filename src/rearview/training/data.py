"""The data of training: a tokenizer, and a text in its tokens, divided into a training and a validation part.

>>> from rearview.text import ByteTokenizer
>>> data = TextData.of(["to be or not to be, that is the question"], ByteTokenizer())
>>> len(data.train), len(data.validation)
(38, 4)
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from rearview.errors import BadArgument
from rearview.text import Tokenizer
from rearview.training.corpus import Corpus
from rearview.training.sources import Document
from rearview.training.text_files import TextFiles
from rearview.training.token_file import Progress, silent, tokens_of_files


@dataclass(frozen=True)
class TextData:
    """A tokenized text.

    Args:
        fingerprint: a hash of the documents: a run continues only with the text that it was started with.
        documents, characters: the number of documents and of characters in both parts.
    """

    tokenizer: Tokenizer
    train: Corpus
    validation: Corpus
    fingerprint: str
    documents: int
    characters: int

    @classmethod
    def of(cls, texts: Sequence[str | Document], tokenizer: Tokenizer, *, validation: float = 0.1) -> TextData:
        """Texts (strings, or what `read_texts` returns) in tokens; the fraction `validation` at the end is held out."""
        plain = [text.text if isinstance(text, Document) else text for text in texts]
        if not any(plain):
            raise BadArgument("texts", expected="text to train on", got="none")
        corpus = Corpus.of(plain, tokenizer)
        train, held_out = corpus.split(validation, tokenizer)
        return cls(tokenizer, train, held_out, fingerprint_of(plain), len(plain), corpus.characters)

    @classmethod
    def of_files(
        cls, files: TextFiles, tokenizer: Tokenizer, *, validation: float = 0.1, progress: Progress = silent
    ) -> TextData:
        """Text files in tokens, which are kept in a file of the cache and are never all in memory."""
        found = tokens_of_files(files, tokenizer, progress)
        train, held_out = found.corpus.split(validation, tokenizer)
        return cls(tokenizer, train, held_out, found.fingerprint, found.documents, found.corpus.characters)

    def check_context(self, context: int) -> None:
        """Check that each part has enough text for a row of this many tokens."""
        for name, part in (("training", self.train), ("validation", self.validation)):
            if len(part) <= context:
                total = len(self.train) + len(self.validation)
                raise BadArgument(
                    "context",
                    expected=f"fewer tokens than the {name} part of the text has ({len(part)} of {total})",
                    got=context,
                    advice=f"Use more text, or a context of at most {max(len(part) - 1, 1)}.",
                )


def fingerprint_of(texts: Sequence[str]) -> str:
    """A hash of documents: equal for equal documents in the same order.

    >>> fingerprint_of(["ab", "c"]) == fingerprint_of(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
