"""Texts that are generated together and printed in order: the first as it grows, the others when it is complete.

>>> from rearview.generation import TextChunk
>>> paper = Streamed(["", ""], headings=["== 1", "== 2"])
== 1
>>> chunks = [TextChunk(0, "to be"), TextChunk(1, "love"), TextChunk(0, "!", "length"), TextChunk(1, "ly", "length")]
>>> for chunk in chunks:
...     paper.print(chunk)
to be!
== 2
lovely
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from rearview.drawing.cells import harmless
from rearview.generation import TextChunk


class Streamed:
    """`starts` are the beginnings of the texts, before what the model adds; `headings` are printed above them."""

    def __init__(self, starts: list[str], headings: list[str] | None = None):
        self._starts, self._headings = starts, headings
        self._waiting = [""] * len(starts)
        self._done = [False] * len(starts)
        self._now = 0
        self._column_is_first = True
        # A pipe gets the text without colours.
        self._console = Console(highlight=False, soft_wrap=True) if sys.stdout.isatty() else None
        self._begin()

    def print(self, chunk: TextChunk) -> None:
        """Print what can be printed now."""
        self._waiting[chunk.sequence] += chunk.text
        self._done[chunk.sequence] |= chunk.reason is not None
        while self._now < len(self._waiting):
            self._write(self._waiting[self._now])
            self._waiting[self._now] = ""
            if not self._done[self._now]:
                return
            self.end_line()
            self._now += 1
            self._begin()

    def end_line(self) -> None:
        """End the line, unless it is empty."""
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
            self._console.print(Text(harmless(text, keep="\n\t"), style=style), end="")
        sys.stdout.flush()
        self._column_is_first = text.endswith("\n")
