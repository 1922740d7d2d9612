"""Incremental decoding: text as its tokens arrive, only whole characters.

>>> from rearview.text import ByteTokenizer, TextStream
>>> stream = TextStream(ByteTokenizer())
>>> [stream.feed(byte) for byte in "aé".encode()]
['a', '', 'é']
"""

from __future__ import annotations

import codecs

from rearview.text.tokenizer import Tokenizer

# UTF-8 encodes a character in at most four bytes: more tokens than that cannot be one unfinished character.
LONGEST_CHARACTER = 4


class TextStream:
    """Decodes ids one by one. The results of `feed`, and of `flush` at the end, join to the whole text."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # For tokens that are not bytes: the latest ids whose text has been returned, which decide about spaces before
        # the next token, and the ids whose text is incomplete.
        self._before: list[int] = []
        self._pending: list[int] = []

    def feed(self, id: int) -> str:
        """The text that this token completes, which may be empty."""
        piece = self.tokenizer.token_bytes(id)
        if piece is not None:
            return self._utf8.decode(piece)
        self._pending.append(id)
        text = self._pending_text()
        # Tokens may be single bytes, and then an unfinished character decodes to this mark.
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._pending) < LONGEST_CHARACTER:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """The remaining text, with U+FFFD for an unfinished character. The stream is then as new."""
        rest = self._utf8.decode(b"", final=True) + self._advance(self._pending_text())
        self._before = []
        self._utf8.reset()
        return rest

    def _pending_text(self) -> str:
        if not self._pending:
            return ""
        return self.tokenizer.decode(self._before + self._pending)[len(self.tokenizer.decode(self._before)) :]

    def _advance(self, text: str) -> str:
        if text or not self._pending:
            self._before, self._pending = self._pending, []
        return text
