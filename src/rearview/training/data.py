"""What a model is trained on: a tokenizer, and the two parts of a text in its tokens.

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


@dataclass(frozen=True)
class TextData:
    """`fingerprint`: of the documents, so that a run goes on with the text that it began with."""

    tokenizer: Tokenizer
    train: Corpus
    validation: Corpus
    fingerprint: str
    documents: int
    characters: int

    @classmethod
    def of(cls, texts: Sequence[str | Document], tokenizer: Tokenizer, *, validation: float = 0.1) -> TextData:
        """Texts (strings, or what `read_texts` gives) in tokens; the last `validation` of them is held out."""
        plain = [text.text if isinstance(text, Document) else text for text in texts]
        if not any(plain):
            raise BadArgument("texts", expected="text to learn from", came="none")
        corpus = Corpus.of(plain, tokenizer)
        train, held_out = corpus.split(validation, tokenizer)
        return cls(tokenizer, train, held_out, fingerprint_of(plain), len(plain), corpus.characters)

    def check_context(self, context: int) -> None:
        """Is there text enough for one row of this many tokens, in each part?"""
        for name, part in (("training", self.train), ("validation", self.validation)):
            if len(part) <= context:
                total = len(self.train) + len(self.validation)
                raise BadArgument(
                    "context",
                    expected=f"fewer tokens than the {name} part of the text has ({len(part)} of {total})",
                    came=context,
                    advice=f"Give more text, or a context of at most {max(len(part) - 1, 1)}.",
                )


def fingerprint_of(texts: Sequence[str]) -> str:
    """The same for the same documents, in the same order.

    >>> fingerprint_of(["ab", "c"]) == fingerprint_of(["a", "bc"])
    False
    """
    digest = hashlib.sha256()
    for text in texts:
        data = text.encode("utf-8", errors="surrogatepass")
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    return digest.hexdigest()
