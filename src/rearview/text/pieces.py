"""Long texts in pieces, for tokenizers that take memory in proportion to what they read at once.

A piece ends between a letter or digit and a space. A tokenizer of bytes, of characters, or of byte-level subwords as in
GPT-2 joins nothing there, so the tokens of the pieces are the tokens of the text.

>>> pieces, rest = cut("to be or not to be", size=8)
>>> pieces, rest
(['to be or', ' not to'], ' be')
"""

from __future__ import annotations

import re

# The number of characters of a piece; more if there is no place to cut.
PIECE = 1 << 18

PLACE = re.compile(r"(?<=[^\W_])[ \n]")
# A place is first looked for in so many characters at the end of a piece, then in more.
NEAR = 256


def cut(text: str, *, size: int = PIECE, searched: int = 0) -> tuple[list[str], str]:
    """The pieces of a text, and the rest, which is shorter than a piece or cannot be cut.

    Args:
        searched: the length of a rest that the text begins with. It has no place to cut beyond the size of a piece.
    """
    pieces: list[str] = []
    at = 0
    while len(text) - at > size:
        end = _last_place(text, at, at + size) if searched <= size else None
        if end is None:
            found = PLACE.search(text, max(at + size + 1, searched))
            if found is None:
                break
            end = found.start()
        pieces.append(text[at:end])
        at, searched = end, 0
    return pieces, text[at:]


def pieces_of(text: str) -> list[str]:
    """The whole text in pieces; none for an empty text."""
    pieces, rest = cut(text)
    return [*pieces, rest] if rest else pieces


def _last_place(text: str, after: int, end: int) -> int | None:
    width = NEAR
    while True:
        begin = max(after + 1, end + 1 - width)
        places = [found.start() for found in PLACE.finditer(text, begin, end + 1)]
        if places:
            return places[-1]
        if begin == after + 1:
            return None
        width *= 8
