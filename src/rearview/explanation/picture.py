"""A Trace as one picture: scores, mask, weights and output, with the mask above and without it below.

    >>> from rearview.explanation.examples import EXAMPLES
    >>> EXAMPLES["restaurant"].trace().save("restaurant.svg")    # doctest: +SKIP

The same Trace gives the same bytes. In an SVG words and numbers stay text, and each table is a group named after its
stage: `scores`, `mask`, `weights`, `output`, `weights-without`, `output-without`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from rearview.drawing.cells import counted, drawn, printable, width, wrapped
from rearview.drawing.figure import (
    COLOURS,
    INK,
    LONGEST_WORD,
    OWN,
    PAPER,
    QUIET,
    draw_labels,
    fits_across,
    rendered,
    word_of,
)
from rearview.drawing.palette import LIGHT
from rearview.drawing.text import Label
from rearview.explanation.numbers import digits_for, shown
from rearview.explanation.trace import Stage, Trace
from rearview.explanation.words import UNTITLED

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Canvas
    from matplotlib.figure import Figure

HEARD, BLOCKED = COLOURS["heard"], COLOURS["blocked"]
# The colour of negative numbers; its strongest shade is as dark as that of positive ones.
NEGATIVE = LIGHT["less-3"]
# Larger tables are drawn without numbers; in still larger ones only some rows and columns are labelled.
MOST_NUMBERED, MOST_LABELLED = 16, 48
SENTENCES = 12

Colour = tuple[float, float, float]


def picture(trace: Trace, ending: str, *, head: int = 0) -> bytes:
    """The bytes of an `.svg`, `.png` or `.pdf` file; see `Trace.save`."""
    return rendered(lambda: _figure(trace, head), ending, needed_for="A picture of a Trace")


@dataclass(frozen=True)
class _Panel:
    """One table: its name and title, its words, its numbers, and how a number is coloured."""

    name: str
    title: str
    stage: Stage
    matrix: Tensor
    colour: Callable[[float], Colour]
    own: int | None
    """The column of the first row's own key, where rows and columns are positions."""

    def written(self, number: float) -> str:
        return shown(number, digits_for(self.matrix))

    @property
    def numbered(self) -> bool:
        return max(self.matrix.shape) <= MOST_NUMBERED

    @property
    def cell(self) -> tuple[float, float]:
        """The width and height of a cell in inches."""
        rows, columns = self.matrix.shape
        if self.numbered:
            longest = max(len(self.written(x)) for row in self.matrix.tolist() for x in row)
            return max(0.58, 0.085 * longest + 0.12), 0.46
        side = max(3.2, min(5.5, 0.14 * max(rows, columns))) / max(rows, columns)
        return max(side, min(0.4, 1.6 / columns)), side

    @property
    def rows(self) -> list[Label]:
        return _labels(self.stage.rows)

    @property
    def columns(self) -> list[Label]:
        return _labels(self.stage.columns)

    @property
    def side(self) -> float:
        """Inches for the labels of the rows."""
        return 0.3 + 0.085 * max(width(word_of(row, LONGEST_WORD)) for row in self.rows)

    @property
    def above(self) -> float:
        """Inches for the title and the words above the columns."""
        if fits_across(self.columns, self.cell[0]):
            return 0.7
        return 0.6 + 0.085 * max(width(word_of(column, LONGEST_WORD)) for column in self.columns)

    @property
    def wide(self) -> float:
        return max(self.side + self.cell[0] * self.matrix.shape[1], 0.11 * len(self.title)) + 0.35

    @property
    def high(self) -> float:
        return self.cell[1] * self.matrix.shape[0] + 0.35


def _figure(trace: Trace, head: int) -> Figure:
    from matplotlib.figure import Figure

    above, below = _panels(trace, head)
    # Weights and output without the mask are below those with it; the sentences fill the corner.
    columns = [above[0].wide, above[1].wide, max(above[2].wide, below[0].wide), max(above[3].wide, below[1].wide)]
    words, words_below = (max(panel.above for panel in row) for row in (above, below))
    top, middle = 0.95, 0.95 + words + max(panel.high for panel in above)
    said = _said(trace, head, room=columns[0] + columns[1] - 0.5)
    wide = sum(columns) + 0.3
    high = middle + max(words_below + max(panel.high for panel in below), 0.3 + 0.22 * len(said)) + 0.35
    figure = Figure(figsize=(wide, high))
    lefts = [0.2 + sum(columns[:n]) for n in range(4)]

    def write(x: float, y: float, text: str, *, size: float, colour: str = INK, bold: bool = False) -> None:
        weight = "bold" if bold else "normal"
        figure.text(x / wide, 1 - y / high, text, size=size, color=colour, weight=weight, parse_math=False, va="center")

    write(0.3, 0.35, printable(trace.title) or UNTITLED, size=15, bold=True)
    write(0.3, 0.65, _facts(trace, head), size=9.5, colour=QUIET)
    for row, panels, first, room in ((top, above, 0, words), (middle, below, 2, words_below)):
        for left, panel in zip(lefts[first:], panels, strict=True):
            write(left + 0.1, row + 0.15, panel.title, size=11, bold=True)
            _draw(figure, panel, (left, row + room), (wide, high))
    for n, (line, bold) in enumerate(said):
        write(0.3, middle + 0.15 + 0.22 * n, line, size=11 if bold else 9.5, bold=bold)
    write(0.3, high - 0.2, _footnote(above + below), size=8.5, colour=QUIET)
    return figure


def _panels(trace: Trace, head: int) -> tuple[list[_Panel], list[_Panel]]:
    own = len(trace.key_labels) - len(trace.labels)
    output = trace["output"]
    score = _around_zero(trace["scores"].of_head(head))
    value = _around_zero(output.of_head(head), output.of_head(head, masked=False))

    def panel(key: str, title: str, colour: Callable[[float], Colour], *, masked: bool = True) -> _Panel:
        stage, name = trace[key], key if masked else f"{key}-without"
        matrix = stage.of_head(head, masked=masked)
        return _Panel(name, printable(title), stage, matrix, colour, None if key == "output" else own)

    mask = trace["mask"]
    above = [
        panel("scores", trace["scores"].formula, score),
        # A long expression is among the facts above.
        panel("mask", mask.formula if len(mask.formula) <= 24 else mask.symbol, _open_or_not),
        panel("weights", trace["weights"].formula, _weight),
        panel("output", output.formula, value),
    ]
    below = [
        panel("weights", "A without the mask", _weight, masked=False),
        panel("output", "O without the mask", value, masked=False),
    ]
    return above, below


def _facts(trace: Trace, head: int) -> str:
    expression = repr(trace.mask)
    facts = [expression if len(expression) <= 60 else f"{expression[:59]}…"]
    facts.append(f"{counted(len(trace.labels), 'query', 'queries')} x {counted(len(trace.key_labels), 'key', 'keys')}")
    return "  ·  ".join([*facts, f"head {head} of {trace.heads}"] if trace.heads > 1 else facts)


def _footnote(panels: list[_Panel]) -> str:
    notes = ["rows: queries, columns: keys"]
    if any(panel.numbered for panel in panels):
        notes += ["0 is exactly 0, 0.000 is not", "outlined: own position"]
    if not all(panel.numbered for panel in panels):
        notes.append(f"a table of more than {MOST_NUMBERED} rows or columns is drawn without its numbers")
    return "  ·  ".join(notes)


def _said(trace: Trace, head: int, *, room: float) -> list[tuple[str, bool]]:
    """The sentences in lines; True marks a title."""
    lines: list[tuple[str, bool]] = []
    readings = [reading.sentence for reading in trace.readings(head)]
    for title, sentences in (("Read aloud", readings), ("What stands out", trace.remarks(head))):
        if sentences:
            lines += [("", False), (title, True)] if lines else [(title, True)]
        for sentence in sentences[:SENTENCES]:
            fitting = max(30, int(room / 0.078))
            lines += [(line, False) for line in wrapped(printable(sentence), fitting, later="    ")]
        if len(sentences) > SENTENCES:
            lines.append((f"… {len(sentences) - SENTENCES} more", False))
    return lines


def _draw(figure: Figure, panel: _Panel, corner: tuple[float, float], size: tuple[float, float]) -> None:
    """The cells with their words; `corner` is left of the words and above the cells, in inches from the top left."""
    rows, columns = panel.matrix.shape
    across, down = panel.cell
    left, bottom = corner[0] + panel.side, size[1] - corner[1] - down * rows
    area = (left / size[0], bottom / size[1], across * columns / size[0], down * rows / size[1])
    canvas = figure.add_axes(area, gid=panel.name)
    canvas.set_xlim(0, columns)
    canvas.set_ylim(rows, 0)
    canvas.axis("off")
    numbers = panel.matrix.tolist()
    if panel.numbered:
        _cells(canvas, panel, numbers)
    else:
        colours = [[panel.colour(x) for x in row] for row in numbers]
        canvas.imshow(colours, extent=(0, columns, rows, 0), aspect="auto", interpolation="nearest")
    steps = (-(-rows // MOST_LABELLED), -(-columns // MOST_LABELLED))
    draw_labels(canvas, panel.rows, panel.columns, panel.cell, fits_across(panel.columns, across), steps=steps)


def _cells(canvas: Canvas, panel: _Panel, numbers: list[list[float]]) -> None:
    from matplotlib.patches import Rectangle

    gap = 0.03
    for r, row in enumerate(numbers):
        for c, x in enumerate(row):
            colour = panel.colour(x)
            own = panel.own is not None and c == r + panel.own
            cell = Rectangle((c + gap, r + gap), 1 - 2 * gap, 1 - 2 * gap, facecolor=colour, linewidth=0)
            if own:
                cell.set(edgecolor=OWN, linewidth=1.4)
            canvas.add_patch(cell)
            # Cells in which nothing is heard have quiet numbers.
            ink = PAPER if _dark(colour) else QUIET if x in (0, -math.inf) else INK
            canvas.text(
                c + 0.5, r + 0.52, panel.written(x), size=9, color=ink, ha="center", va="center", parse_math=False
            )


def _open_or_not(x: float) -> Colour:
    return _blend(HEARD if x == 0 else BLOCKED, 1.0)


def _weight(x: float) -> Colour:
    # The square root makes small weights visible; a weight of exactly 0 has the colour of a blocked cell.
    return _blend(HEARD, math.sqrt(min(x, 1.0))) if x > 0 else _blend(BLOCKED, 1.0)


def _around_zero(*matrices: Tensor) -> Callable[[float], Colour]:
    """Blue above 0 and red below, scaled by the largest finite number."""
    finite = [abs(x) for matrix in matrices for row in matrix.tolist() for x in row if math.isfinite(x)]
    largest = max(finite, default=0.0) or 1.0

    def colour(x: float) -> Colour:
        if x == 0 or not math.isfinite(x):
            return _blend(BLOCKED, 1.0)
        return _blend(HEARD if x > 0 else NEGATIVE, 0.06 + 0.8 * min(1.0, abs(x) / largest))

    return colour


def _blend(colour: str, share: float) -> Colour:
    paper, ink = ([int(c[n : n + 2], 16) / 255 for n in (1, 3, 5)] for c in (PAPER, colour))
    red, green, blue = (p + (i - p) * share for p, i in zip(paper, ink, strict=True))
    return red, green, blue


def _dark(colour: Colour) -> bool:
    red, green, blue = colour
    return 0.3 * red + 0.59 * green + 0.11 * blue < 0.52


def _labels(words: tuple[str, ...]) -> list[Label]:
    return [Label(n, drawn(word)) for n, word in enumerate(words)]
