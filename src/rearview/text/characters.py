"""A token is a character of the text that it was made from.

>>> from rearview.text import CharTokenizer
>>> tokenizer = CharTokenizer.of(["hello"])
>>> tokenizer.alphabet, tokenizer.vocab_size
('ehlo', 5)
>>> tokenizer.encode("hole")
[1, 3, 2, 0]
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from rearview.errors import BadArgument
from rearview.text.own import OwnTokenizer
from rearview.text.specials import END, Specials

# Unknown characters that an error names one by one.
NAMED = 8


class CharTokenizer(OwnTokenizer):
    """An alphabet, sorted, then the special tokens.

    >>> CharTokenizer("ab", specials=("<end>", "<pad>")).pad_id
    3
    """

    kind = "characters"

    def __init__(self, alphabet: str, specials: Sequence[str] = (END,)):
        if not isinstance(alphabet, str) or not alphabet or len(set(alphabet)) < len(alphabet):
            raise BadArgument("alphabet", expected="a string with each character once", came=repr(alphabet))
        super().__init__(Specials(specials, start=len(alphabet)))
        self.alphabet = alphabet
        self._ids = {character: id for id, character in enumerate(alphabet)}

    @classmethod
    def of(cls, texts: Iterable[str], specials: Sequence[str] = (END,)) -> CharTokenizer:
        """The tokenizer whose alphabet is what these texts use."""
        alphabet = "".join(sorted(set().union(*([texts] if isinstance(texts, str) else texts))))
        if not alphabet:
            raise BadArgument("texts", expected="texts with at least one character", came="none")
        return cls(alphabet, specials)

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return "".join(self.alphabet[id] for id in ids if id < len(self.alphabet))

    def token_bytes(self, id: int) -> bytes:
        return self.decode([id]).encode("utf-8", errors="surrogatepass")

    def save(self, folder: str | os.PathLike[str]) -> None:
        self._write(folder, {"alphabet": self.alphabet})

    def _plain(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            unknown = sorted(set(text) - self._ids.keys())
        named = ", ".join(repr(character) for character in unknown[:NAMED])
        raise BadArgument(
            "text",
            expected=f"the {len(self.alphabet)} characters of the tokenizer's alphabet",
            came=named + (f" and {len(unknown) - NAMED} others" if len(unknown) > NAMED else ""),
            advice="Leave them out, or train with a tokenizer that takes any text: bytes or bpe.",
        ) from None
