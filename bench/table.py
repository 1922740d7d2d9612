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

from bench.lowering import MASK, Lowered
from bench.measure import Outcome, Row
from bench.rivals import AUTO, DENSE, PLAIN

LEGEND = (
    "ms: the median over the rounds, and the quartiles. vs dense, vs causal: how many times faster than SDPA with",
    "the dense mask and than SDPA is_causal, the median of the ratio in the same round; below 1 is slower. first",
    "ms: the mask made, written out or compiled, and one forward call, once. SDPA is_causal also stands for SDPA",
    "with no mask at all, where one token is decoded. With padding on the right is_causal alone is right for every",
    "real token; the rows of padding are read by nobody and not judged. Each contestant's answer, and its gradients,",
    "agreed with the float64 reference before it was timed, or it is marked WRONG.",
)


@dataclass(frozen=True)
class Table:
    """Text in columns: the first is words, and the last may be; between them stand numbers."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    last_is_words: bool = False

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
            style = (
                "bold red" if "WRONG" in line else "cyan" if AUTO in line else "" if line.startswith(" ") else "bold"
            )
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
        return column == 0 or (self.last_is_words and column == len(self.headers) - 1)


def table_of(outcomes: Sequence[Outcome]) -> Table:
    """All cases in one direction: a line for the case, then one for each contestant."""
    headers = ("case", "ms", "quartiles", "vs dense", "vs causal", "first ms", "note")
    rows = []
    for outcome in outcomes:
        loud = f"disturbed in {outcome.loud_rounds} of {outcome.rounds} rounds" if outcome.loud_rounds else ""
        rows.append((f"{outcome.case.name}, {outcome.case.sizes}", *[""] * (len(headers) - 2), loud))
        rows += [(f"  {row.name}", *_numbers(outcome, row), _note(outcome, row)) for row in outcome.rows]
    return Table(headers, rows, last_is_words=True)


def table_of_lowering(lowered: Sequence[Lowered]) -> Table:
    rows = [(each.what, f"{each.length:,}", f"{each.seconds:.3f}", _bytes(each.peak_bytes)) for each in lowered]
    return Table((f"{MASK} to", "positions", "seconds", "peak memory"), rows)


def _numbers(outcome: Outcome, row: Row) -> tuple[str, ...]:
    first = "-" if row.first_ms is None else _ms(row.first_ms)
    if not row.samples:
        return "-", "-", "-", "-", first
    low, high = row.quartiles
    ratios = (_ratio(outcome.times_faster(row.name, than=rival)) for rival in (DENSE, PLAIN))
    return _ms(row.median), f"{_ms(low)} - {_ms(high)}", *ratios, first


def _note(outcome: Outcome, row: Row) -> str:
    return outcome.verdict_on_auto() if row.name == AUTO and row.samples else row.note


def _ms(number: float) -> str:
    digits = 3 if number < 1 else 2 if number < 10 else 1 if number < 1000 else 0
    return f"{number:.{digits}f}"


def _ratio(number: float | None) -> str:
    return "-" if number is None else f"{number:.2f}x"


def _bytes(count: int | None) -> str:
    if count is None:
        return "-"
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
