"""A token is a byte of UTF-8: any text, no training, 256 tokens and the special ones.

>>> from rearview.text import ByteTokenizer
>>> tokenizer = ByteTokenizer()
>>> tokenizer.encode("hé")
[104, 195, 169]
>>> tokenizer.decode([104, 195, 169, tokenizer.end_id])
'hé'
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rearview.errors import BadArgument
from rearview.text.own import OwnTokenizer
from rearview.text.specials import END, Specials


class ByteTokenizer(OwnTokenizer):
    """256 bytes, then the special tokens.

    >>> ByteTokenizer(specials=("<end>", "<mask>")).mask_id
    257
    """

    kind = "bytes"

    def __init__(self, specials: Sequence[str] = (END,)):
        super().__init__(Specials(specials, start=256))

    def decode(self, ids: Sequence[int]) -> str:
        """The text; bytes that are none become U+FFFD."""
        self._check(ids)
        return bytes(id for id in ids if id < 256).decode("utf-8", errors="replace")

    def token_bytes(self, id: int) -> bytes:
        self._check([id])
        return bytes([id]) if id < 256 else b""

    def save(self, folder: str | os.PathLike[str]) -> None:
        self._write(folder, {})

    def _plain(self, text: str) -> list[int]:
        try:
            return list(text.encode("utf-8"))
        except UnicodeEncodeError as error:
            raise BadArgument("text", expected="text that UTF-8 can write", came=str(error)) from error
