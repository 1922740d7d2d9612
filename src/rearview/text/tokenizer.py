"""What every tokenizer can do.

>>> from rearview.text import ByteTokenizer, Tokenizer
>>> isinstance(ByteTokenizer(), Tokenizer)
True
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class Tokenizer(Protocol):
    """Text to ids from 0 to `vocab_size - 1`, and back.

    Special tokens stand for no text: `end_id` ends a document, and starts a text without a beginning; `mask_id` stands
    for a hidden token, `pad_id` for none, `sentinel_ids` for hidden spans. What a tokenizer lacks is None, or empty.
    """

    @property
    def kind(self) -> str:
        """What the tokens are, in a word."""
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
        """The ids of a text. `specials`: names of special tokens in the text are read as these tokens."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens have none."""
        ...

    def token_bytes(self, id: int) -> bytes | None:
        """The bytes that a token adds to the text, or None where a token alone does not tell."""
        ...

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write what `load_tokenizer(folder)` reads."""
        ...
