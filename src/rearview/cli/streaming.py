"""Texts that grow at the same time, printed one after the other: the first as it comes, the others when it is done.

>>> from rearview.generation import Piece
>>> paper = Streamed(["", ""], headings=["== 1", "== 2"])
== 1
>>> for piece in (Piece(0, "to be"), Piece(1, "love"), Piece(0, "!", "length"), Piece(1, "ly", "length")):
...     paper.print(piece)
to be!
== 2
lovely
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from rearview.generation import Piece


class Streamed:
    """`starts` is what each text begins with, before what the model adds; `headings` stand above them."""

    def __init__(self, starts: list[str], headings: list[str] | None = None):
        self._starts, self._headings = starts, headings
        self._waiting = [""] * len(starts)
        self._done = [False] * len(starts)
        self._now = 0
        self._column_is_first = True
        # Colour is for people; a pipe gets the text and nothing else.
        self._console = Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() else None
        self._begin()

    def print(self, piece: Piece) -> None:
        """Print what can be printed now."""
        self._waiting[piece.sequence] += piece.text
        self._done[piece.sequence] |= piece.reason is not None
        while self._now < len(self._waiting):
            self._write(self._waiting[self._now])
            self._waiting[self._now] = ""
            if not self._done[self._now]:
                return
            self.end_line()
            self._now += 1
            self._begin()

    def end_line(self) -> None:
        """Whatever follows stands on a line of its own."""
        if not self._column_is_first:
            self._write("\n")

    def _begin(self) -> None:
        if self._now == len(self._starts):
            return
        if self._headings is not None:
            self._write(self._headings[self._now] + "\n", style="bold")
        self._write(self._starts[self._now], style="dim")

    def _write(self, text: str, style: str = "") -> None:
        if not text:
            return
        if self._console is None:
            sys.stdout.write(text)
        else:
            self._console.print(Text(printable(text), style=style), end="")
        sys.stdout.flush()
        self._column_is_first = text.endswith("\n")


def printable(text: str) -> str:
    """Text that cannot steer a terminal: a model may say anything, escape codes too.

    >>> printable("red \\x1b[31m\\n")
    'red �[31m\\n'
    """
    return "".join(c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
