"""Text as its tokens arrive, never half a character.

>>> from rearview.text import ByteTokenizer, TextStream
>>> stream = TextStream(ByteTokenizer())
>>> [stream.feed(byte) for byte in "aé".encode()]
['a', '', 'é']
"""

from __future__ import annotations

import codecs

from rearview.text.tokenizer import Tokenizer

# A character has at most four bytes: what is longer unfinished will never be one.
LONGEST_CHARACTER = 4


class TextStream:
    """Feed ids one by one; the pieces joined, `flush` last, are the text of all of them."""

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # Where tokens are not bytes: the ids whose text is out already, kept for the spaces between tokens, and those
        # that wait.
        self._before: list[int] = []
        self._waiting: list[int] = []

    def feed(self, id: int) -> str:
        """The text that is certain now; may be empty."""
        piece = self.tokenizer.token_bytes(id)
        if piece is not None:
            return self._utf8.decode(piece)
        self._waiting.append(id)
        text = self._waiting_text()
        # The mark of an unfinished character, where tokens can be single bytes.
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(self._waiting) < LONGEST_CHARACTER:
            return ""
        return self._advance(text)

    def flush(self) -> str:
        """What was held back: an unfinished character becomes U+FFFD. The stream starts anew."""
        rest = self._utf8.decode(b"", final=True) + self._advance(self._waiting_text())
        self._before = []
        self._utf8.reset()
        return rest

    def _waiting_text(self) -> str:
        if not self._waiting:
            return ""
        return self.tokenizer.decode(self._before + self._waiting)[len(self.tokenizer.decode(self._before)) :]

    def _advance(self, text: str) -> str:
        if text or not self._waiting:
            self._before, self._waiting = self._waiting, []
        return text
