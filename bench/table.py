"""One table, drawn for a terminal (rich, where it is installed), a pipe or a Markdown file. ASCII only.

>>> print(Table(("case", "ms"), [("causal", "1.5"), ("window", "12")]).plain())
case     ms
causal  1.5
window   12
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """Text in columns: the first `words_first` and, if asked, the last are words; between them are numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    last_is_words: bool = False
    words_first: int = 1

    def plain(self) -> str:
        return "\n".join(self._lines())

    def markdown(self) -> str:
        ruler = [":--" if self._is_words(column) else "--:" for column in range(len(self.headers))]
        lines = [self.headers, ruler, *self.rows]
        return "\n".join("| " + " | ".join(text.strip().replace("|", "\\|") for text in line) + " |" for line in lines)

    def show(self) -> None:
        """Print it: coloured on a terminal, plain in a pipe."""
        if sys.stdout.isatty():
            try:
                return self._show_in_colour()
            except ImportError:
                pass
        print(self.plain())

    def _show_in_colour(self) -> None:
        from rich.console import Console
        from rich.text import Text

        # Soft wrap: a line that is too long for the terminal is folded by it, not shortened.
        console = Console(highlight=False, soft_wrap=True)
        header, *lines = self._lines()
        console.print(Text(header, style="bold"))
        for line in lines:
            style = "bold red" if "WRONG" in line else "" if line.startswith(" ") else "bold"
            console.print(Text(line, style=style))

    def _lines(self) -> list[str]:
        lines = [self.headers, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.headers))]
        drawn = [
            "  ".join(
                text.ljust(width) if self._is_words(column) else text.rjust(width)
                for column, (text, width) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return [line.rstrip() for line in drawn]

    def _is_words(self, column: int) -> bool:
        return column < self.words_first or (self.last_is_words and column == len(self.headers) - 1)


def ms(number: float) -> str:
    """Milliseconds with about three digits.

    >>> ms(0.12345), ms(4.567), ms(1234.5)
    ('0.123', '4.57', '1234')
    """
    digits = 3 if number < 1 else 2 if number < 10 else 1 if number < 1000 else 0
    return f"{number:.{digits}f}"


def ratio(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}x"


def size(count: float | None) -> str:
    """Bytes as MiB or GiB; "-" where they are unknown."""
    if count is None:
        return "-"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
