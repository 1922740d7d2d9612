"""The interface of every tokenizer, and readable labels for tokens.

>>> from rearview.text import ByteTokenizer, Tokenizer, token_labels
>>> isinstance(ByteTokenizer(), Tokenizer)
True
>>> token_labels(ByteTokenizer(), [72, 105, 32, 10, 195, 256])
['H', 'i', '␣', '⏎', '\\\\xc3', '<256>']
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from rearview.drawing.cells import printable
from rearview.text.pieces import pieces_of

# The number of pieces of a text that are encoded at once.
AT_ONCE = 16
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


@runtime_checkable
class Tokenizer(Protocol):
    """Converts text to ids from 0 to `vocab_size - 1`, and back.

    Special tokens have no text: `end_id` ends a document (and starts a text that has no prompt), `mask_id` stands for a
    hidden token, `pad_id` for padding, `sentinel_ids` for hidden spans. A token that the tokenizer does not have is
    None, and `sentinel_ids` is empty.
    """

    @property
    def kind(self) -> str:
        """The kind of its tokens: "bytes", "characters" or "pieces"."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def end_id(self) -> int | None: ...

    @property
    def mask_id(self) -> int | None: ...

    @property
    def pad_id(self) -> int | None: ...

    @property
    def sentinel_ids(self) -> tuple[int, ...]: ...

    def encode(self, text: str, *, specials: bool = False) -> list[int]:
        """The ids of a text. With `specials`, names of special tokens in the text become these tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the ids, without special tokens."""
        ...

    def token_bytes(self, id: int) -> bytes | None:
        """The bytes that a token adds to the text, or None if they depend on the tokens around it."""
        ...

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the files that `load_tokenizer(folder)` reads."""
        ...


def encode_tensor(tokenizer: Tokenizer, text: str) -> Tensor:
    """The ids of a text, int32; in pieces and without Python numbers where the tokenizer allows it.

    >>> from rearview.text import ByteTokenizer
    >>> encode_tensor(ByteTokenizer(), "ab")
    tensor([97, 98], dtype=torch.int32)
    """
    if not getattr(tokenizer, "reads_pieces", False):
        return torch.tensor(tokenizer.encode(text), dtype=torch.int32)
    pieces = pieces_of(text)
    found = [torch.empty(0, dtype=torch.int32)]
    # A few at a time, in parallel: a tokenizer may take a hundred bytes per character while it reads.
    for first in range(0, len(pieces), AT_ONCE):
        found += encode_tensors(tokenizer, pieces[first : first + AT_ONCE])
    return torch.cat(found)


def encode_tensors(tokenizer: Tokenizer, texts: Sequence[str]) -> list[Tensor]:
    """The ids of each text; at once where the tokenizer has a method of this name for it."""
    together = getattr(tokenizer, "encode_tensors", None)
    if together is not None:
        return together(texts)
    return [torch.tensor(tokenizer.encode(text), dtype=torch.int32) for text in texts]


def token_labels(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """A label per token: its text, with whitespace, control characters and incomplete characters made visible."""
    return [_label(tokenizer, id) for id in ids]


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first id that does not mean the same to both tokenizers, or None if they have the same vocabulary.

    >>> from rearview.text import CharTokenizer
    >>> first_difference(CharTokenizer("abc"), CharTokenizer("abd"))
    2
    """
    shared = range(min(one.vocab_size, other.vocab_size))
    differs = (id for id in shared if _meaning(one, id) != _meaning(other, id))
    return next(differs, None if one.vocab_size == other.vocab_size else len(shared))


def _meaning(tokenizer: Tokenizer, id: int) -> tuple[bytes | str, bool]:
    data = tokenizer.token_bytes(id)
    return tokenizer.decode([id]) if data is None else data, id == tokenizer.end_id


def _label(tokenizer: Tokenizer, id: int) -> str:
    data = tokenizer.token_bytes(id)
    text = tokenizer.decode([id]) if data is None else data.decode("utf-8", errors="backslashreplace")
    return printable(text.translate(VISIBLE)) or f"<{id}>"
