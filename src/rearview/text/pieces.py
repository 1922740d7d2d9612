"""Long texts in pieces, for tokenizers that take memory in proportion to what they read at once.

A piece ends between a letter or digit and a space. A tokenizer of bytes, of characters, or of byte-level subwords as in
GPT-2 joins nothing there, so the tokens of the pieces are the tokens of the text.

>>> pieces, rest = cut("to be or not to be", size=8)
>>> pieces, rest
(['to be or', ' not to'], ' be')
"""

from __future__ import annotations

# The number of characters of a piece; more if there is no place to cut.
PIECE = 1 << 18


def cut(text: str, *, size: int = PIECE) -> tuple[list[str], str]:
    """The pieces of a text, and the rest, which is shorter than a piece or cannot be cut."""
    pieces: list[str] = []
    at = 0
    while len(text) - at > size:
        back = (n for n in range(at + size, at, -1) if _may_cut(text, n))
        on = (n for n in range(at + size + 1, len(text)) if _may_cut(text, n))
        end = next(back, None) or next(on, None)
        if end is None:
            break
        pieces.append(text[at:end])
        at = end
    return pieces, text[at:]


def pieces_of(text: str) -> list[str]:
    """The whole text in pieces; none for an empty text."""
    pieces, rest = cut(text)
    return [*pieces, rest] if rest else pieces


def _may_cut(text: str, at: int) -> bool:
    return text[at] in " \n" and text[at - 1].isalnum()
