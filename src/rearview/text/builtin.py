"""Tokenizers that need no library: one token per byte, or one token per character.

>>> from rearview.text import ByteTokenizer, CharTokenizer
>>> ByteTokenizer().encode("hé")
[104, 195, 169]
>>> tokenizer = CharTokenizer.of(["hello"])
>>> tokenizer.alphabet, tokenizer.vocab_size
('ehlo', 5)
>>> tokenizer.encode("hole")
[1, 3, 2, 0]
"""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.text.specials import END, Specials

FILE = "rearview_tokenizer.json"
# The ids of an empty text.
NONE = torch.empty(0, dtype=torch.int32)
# The number of unknown characters that an error lists one by one.
LISTED = 8


class BuiltinTokenizer(ABC):
    """Special tokens and the file format, which both built-in tokenizers share.

    Ordinary tokens have the ids from 0; special tokens follow them.
    """

    kind: str
    # The tokens of a text are those of its pieces.
    reads_pieces = True

    def __init__(self, specials: Specials):
        self.specials = specials
        self.vocab_size = specials.start + len(specials.names)

    @property
    def end_id(self) -> int | None:
        return self.specials.end_id

    @property
    def mask_id(self) -> int | None:
        return self.specials.mask_id

    @property
    def pad_id(self) -> int | None:
        return self.specials.pad_id

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        return self.specials.sentinel_ids

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids of a text. With `specials`, names such as <mask> in the text become special tokens."""
        if not isinstance(text, str):
            raise BadArgument("text", expected="a string", got=type(text).__name__)
        if not specials:
            return self._encode_plain(text)
        parts = ([part] if isinstance(part, int) else self._encode_plain(part) for part in self.specials.split(text))
        return [id for part in parts for id in part]

    @abstractmethod
    def encode_tensors(self, texts: Sequence[str]) -> list[Tensor]:
        """The ids of each text, int32; without a list of Python numbers, which takes eight times the memory."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str: ...

    @abstractmethod
    def token_bytes(self, id: int) -> bytes: ...

    @abstractmethod
    def save(self, folder: str | os.PathLike[str]) -> None: ...

    @abstractmethod
    def _encode_plain(self, text: str) -> list[int]: ...

    def _check(self, ids: Sequence[int]) -> None:
        wrong = next((id for id in ids if not 0 <= id < self.vocab_size), None)
        if wrong is not None:
            raise BadArgument("ids", expected=f"ids from 0 to {self.vocab_size - 1}", got=wrong)

    def _write(self, folder: str | os.PathLike[str], settings: Mapping[str, str]) -> None:
        data = {"kind": self.kind, **settings, "specials": self.specials.names}
        Path(folder, FILE).write_text(json.dumps(data, ensure_ascii=True, indent=1) + "\n", encoding="ascii")


class ByteTokenizer(BuiltinTokenizer):
    """One token per byte of UTF-8: it encodes any text and needs no training.

    >>> tokenizer = ByteTokenizer(specials=("<end>", "<mask>"))
    >>> tokenizer.mask_id
    257
    >>> tokenizer.decode([104, 195, 169, tokenizer.end_id])
    'hé'
    """

    kind = "bytes"

    def __init__(self, specials: Sequence[str] = (END,)):
        super().__init__(Specials(specials, start=256))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids. Bytes that are not valid UTF-8 become U+FFFD."""
        self._check(ids)
        return bytes(id for id in ids if id < 256).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        self._check([id])
        return bytes([id]) if id < 256 else b""

    def save(self, folder: str | os.PathLike[str]) -> None:
        self._write(folder, {})

    def encode_tensors(self, texts: Sequence[str]) -> list[Tensor]:
        encoded = [self._bytes(text) for text in texts]
        return [torch.frombuffer(bytearray(data), dtype=torch.uint8).int() if data else NONE for data in encoded]

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._bytes(text))

    def _bytes(self, text: str) -> bytes:
        try:
            return text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadArgument("text", expected="text that UTF-8 can encode", got=str(error)) from error


class CharTokenizer(BuiltinTokenizer):
    """One token per character of an alphabet.

    >>> CharTokenizer("ab", specials=("<end>", "<pad>")).pad_id
    3
    """

    kind = "characters"

    def __init__(self, alphabet: str, specials: Sequence[str] = (END,)):
        if not isinstance(alphabet, str) or not alphabet or len(set(alphabet)) < len(alphabet):
            raise BadArgument("alphabet", expected="a string of distinct characters", got=repr(alphabet))
        super().__init__(Specials(specials, start=len(alphabet)))
        self.alphabet = alphabet
        self._ids = {character: id for id, character in enumerate(alphabet)}

    @classmethod
    def of(cls, texts: Iterable[str], specials: Sequence[str] = (END,)) -> CharTokenizer:
        """A tokenizer whose alphabet is the sorted set of characters in `texts`."""
        found: set[str] = set()
        # One by one: the texts may be pieces of a file that is larger than memory.
        for text in [texts] if isinstance(texts, str) else texts:
            found.update(text)
        alphabet = "".join(sorted(found))
        if not alphabet:
            raise BadArgument("texts", expected="texts with at least one character", got="none")
        return cls(alphabet, specials)

    def encode_tensors(self, texts: Sequence[str]) -> list[Tensor]:
        # The ids of all characters up to the last of the alphabet, which is sorted or short.
        table = torch.full((max(map(ord, self.alphabet)) + 1,), -1, dtype=torch.int32)
        table[torch.tensor([ord(character) for character in self.alphabet])] = torch.arange(
            len(self.alphabet), dtype=torch.int32
        )
        found: list[Tensor] = []
        for text in texts:
            data = bytearray(text.encode("utf-32-le", errors="surrogatepass"))
            points = torch.frombuffer(data, dtype=torch.int32) if data else NONE
            known = points < len(table)
            ids = table[torch.where(known, points, 0).long()]
            if not bool((known & (ids >= 0)).all()):
                # The same error as for one text.
                self._encode_plain(text)
            found.append(ids)
        return found

    def decode(self, ids: Sequence[int]) -> str:
        self._check(ids)
        return "".join(self.alphabet[id] for id in ids if id < len(self.alphabet))

    def token_bytes(self, id: int) -> bytes:
        return self.decode([id]).encode("utf-8", errors="surrogatepass")

    def save(self, folder: str | os.PathLike[str]) -> None:
        self._write(folder, {"alphabet": self.alphabet})

    def _encode_plain(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError:
            unknown = sorted(set(text) - self._ids.keys())
        listed = ", ".join(repr(character) for character in unknown[:LISTED])
        raise BadArgument(
            "text",
            expected=f"the {len(self.alphabet)} characters of the tokenizer's alphabet",
            got=listed + (f" and {len(unknown) - LISTED} others" if len(unknown) > LISTED else ""),
            advice="Remove them, or train with a tokenizer that encodes any text: bytes or bpe.",
        ) from None
