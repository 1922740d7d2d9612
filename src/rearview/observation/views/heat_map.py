"""Heat maps and heat tables in characters: half blocks in colour on a terminal, shades of text elsewhere.

>>> drawing = HeatDrawing([[Segment("#", "label")]], [[Segment("▀", ink=(255, 0, 0))]])
>>> str(drawing), drawing.painted(256)
('#', '\\x1b[38;5;196m▀\\x1b[0m')
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rearview.drawing.cells import cut, left, letters, width
from rearview.drawing.palette import Colour
from rearview.drawing.text import Drawing, Piece, Role, line_pieces
from rearview.observation.views.layer_change import MapView
from rearview.observation.views.layer_view import LayerView, short_name
from rearview.observation.views.scales import ShadedMap
from rearview.observation.views.terminal_colours import (
    CHANGE,
    FORBIDDEN,
    HEAT,
    MANY,
    QUIET,
    between,
    depth_of,
    painted,
    readable_on,
)

if TYPE_CHECKING:
    from rearview.observation.result.layer import Layer

# Shares from smallest to largest, and changes from loss to gain. A blank is a key that the mask blocks.
SHADES, CHANGE_SHADES = ".:-=+*#%@", "%=-.+*#"
# The largest number of rows that each get a line and a label.
LABELLED = 32
LONGEST_WORD, TALLEST_WORD = 14, 8


class Segment(NamedTuple):
    """A part of a line: its text, its role, and its colours if it has any."""

    text: str
    role: Role = "label"
    ink: Colour | None = None
    paper: Colour | None = None


Line = list[Segment]


class HeatDrawing(Drawing):
    """A drawing with a second form in colour: `str` is the plain one, and `repr` uses colour on a terminal."""

    colours: list[Line]

    def __new__(cls, plain: list[Line], colours: list[Line]) -> HeatDrawing:
        drawing = super().__new__(cls, line_pieces([[Piece(spot.text, spot.role) for spot in line] for line in plain]))
        assert isinstance(drawing, HeatDrawing)
        drawing.colours = colours
        return drawing

    def painted(self, depth: int = MANY) -> str:
        """The form for a terminal with this many colours; the plain one for 0."""
        if not depth:
            return str(self)
        quiet = {"remark": QUIET, "range": QUIET}
        return "\n".join(
            "".join(
                painted(
                    spot.text,
                    ink=spot.ink or quiet.get(spot.role),
                    paper=spot.paper,
                    bold=spot.role == "title",
                    depth=depth,
                )
                for spot in line
            )
            for line in self.colours
        )

    def __repr__(self) -> str:
        return self.painted(depth_of(sys.stdout))


def heat_map(
    view: MapView, row: int, scale: str, *, room: int, most: int, coloured: bool, labelled: bool = True
) -> list[Line]:
    """The map of a head in at most `room` characters and `most` bins per side."""
    base = view.base
    is_small = max(base.map.shape[-2:]) <= min(LABELLED, most, (room - LONGEST_WORD - 12) // 2) and labelled
    margin = 8
    if not is_small:
        # A half block is one character wide; in plain text a cell takes two characters to look square.
        fits = room - margin - 2 if coloured else (room - margin - 2) // 2
        view = view.coarser(min(most, fits))
        base = view.base
    result = view.shaded(row, scale)
    cells = result.shades.tolist()
    if is_small:
        return _labelled_map(base, result, cells, coloured)
    starts = [base.queries_of(n).start for n in range(len(cells))]
    rows = range(0, len(cells), 2) if coloured else range(len(cells))
    lines: list[Line] = [_positions(base, len(cells[0]), margin, 1 if coloured else 2)]
    for place, n in enumerate(rows):
        label = f"{starts[n]:,}" if place % 4 == 0 else ""
        spots = [Segment(label.rjust(margin - 1) + " ", "remark")]
        if coloured:
            below = cells[n + 1] if n + 1 < len(cells) else [None] * len(cells[n])
            spots += [_half_block(upper, lower, result) for upper, lower in zip(cells[n], below, strict=True)]
        else:
            spots.append(Segment("".join(2 * _glyph(shade, result) for shade in cells[n]), "label"))
        lines.append(spots)
    return lines


def _labelled_map(base: LayerView, result: ShadedMap, cells: list[list[float]], coloured: bool) -> list[Line]:
    """The map with a token before each row and above each column."""
    words = [_word(base.query_labels, base.queries_of(n), LONGEST_WORD) for n in range(len(cells))]
    above = [_word(base.key_labels, base.keys_of(n), TALLEST_WORD) for n in range(len(cells[0]))]
    digits = len(str(max(abs(base.start), base.stop)))
    longest = max(map(width, words))
    margin = digits + 3 + (longest + 1 if longest else 0)
    numbers = [str(base.keys_of(n).start) for n in range(len(cells[0]))]
    lines = [
        [Segment(" " * margin + line, "remark")] for line in [*_stacked(numbers), *_stacked(above)] if line.strip()
    ]
    for n, row in enumerate(cells):
        label = f"  {base.queries_of(n).start:>{digits}} {words[n]}"
        spots = [Segment(left(label, margin), "label")]
        if coloured:
            spots += [Segment("  ", paper=_colour(shade, result)) for shade in row]
        else:
            spots.append(Segment("".join(2 * _glyph(shade, result) for shade in row), "label"))
        lines.append(spots)
    return lines


def _word(labels: Sequence[str] | None, positions: range, most: int) -> str:
    return cut(labels[positions.start], most) if labels and 0 <= positions.start < len(labels) else ""


def _stacked(texts: list[str]) -> list[str]:
    columns = [letters(text) for text in texts]
    tallest = max(map(len, columns))
    padded = [[" "] * (tallest - len(column)) + column for column in columns]
    return ["".join(left(column[n], 2) for column in padded) for n in range(tallest)]


def _positions(base: LayerView, columns: int, margin: int, cell: int) -> Line:
    line = ""
    for n in range(0, columns, 8):
        if width(line) <= cell * n:
            line = left(line, cell * n) + f"{base.keys_of(n).start:,} "
    return [Segment(" " * margin + line, "remark")]


def _half_block(upper: float, lower: float | None, result: ShadedMap) -> Segment:
    return Segment("▀", ink=_colour(upper, result), paper=None if lower is None else _colour(lower, result))


def _colour(shade: float, result: ShadedMap) -> Colour:
    return FORBIDDEN if math.isnan(shade) else between(CHANGE if result.is_two_sided else HEAT, shade)


def _glyph(shade: float, result: ShadedMap) -> str:
    if math.isnan(shade):
        return " "
    glyphs = CHANGE_SHADES if result.is_two_sided else SHADES
    return glyphs[min(len(glyphs) - 1, int(shade * len(glyphs)))]


def ramp(result: ShadedMap, *, coloured: bool, of_each: bool = False) -> list[Line]:
    """The legend of the shades. `of_each`: the ends differ from map to map."""
    low, middle, high = ("least", "", "most") if of_each else result.ends
    if coloured:
        bar = [Segment("█", ink=_colour(n / 23, result)) for n in range(24)]
        words = f" {high}{f'   (middle: {middle})' if middle else ''}"
        blocked = [
            Segment(f" {result.what}   ", "remark"),
            Segment("██", ink=FORBIDDEN),
            Segment(" may not be heard", "remark"),
        ]
        return [[Segment(f" {low} ", "remark"), *bar, Segment(words, "remark")], blocked]
    parts = [
        f"{_glyph(1, result)} {high}",
        f"{_glyph(0.5, result)} {middle}" if middle else "",
        f"{_glyph(0, result)} {low}",
        result.what,
        "blank: may not be heard",
    ]
    return [[Segment(" " + "   ".join(filter(None, parts)), "remark")]]


def heat_table(
    layers: Sequence[Layer],
    values: list[list[float]],
    metric: dict[str, object],
    room: int,
    *,
    coloured: bool,
) -> list[Line]:
    """One figure of every head; rows are layers, columns are heads. Numbers where they fit, shades elsewhere."""
    several = len({layer.kind for layer in layers}) > 1
    names = [short_name(layer, several_kinds=several) for layer in layers]
    margin = max(6, *(len(name) + 2 for name in names))
    most = max(map(len, values))
    cell = next((size for size in (5, 2) if margin + most * size <= room), 1)
    finite = [abs(x) for row in values for x in row if math.isfinite(x)]
    top = float(str(metric.get("most", 0))) or max(finite, default=0.0) or 1.0
    unit = ", % of the weight" if metric["unit"] == "share" else ""
    lines: list[Line] = [[Segment(f" {metric['name']}{unit}", "title")]]
    longest = max(layers, key=lambda layer: len(layer.heads))
    step = 1 if cell == 5 else 8
    heads = [str(number) if n % step == 0 else "" for n, number in enumerate(longest.heads)]
    heading = "".join(
        head.rjust(cell - 1) + " " if cell == 5 else head.ljust(cell * step) for head in heads if cell == 5 or head
    )
    lines.append([Segment(" " * margin + heading, "remark")])
    signed = bool(metric.get("signed"))
    for name, row in zip(names, values, strict=True):
        spots = [Segment(name.rjust(margin - 1) + " ", "remark")]
        spots += [_figure(x, top, cell, metric["unit"] == "share", signed, coloured) for x in row]
        lines.append(spots)
    return lines


def _figure(value: float, top: float, cell: int, is_share: bool, signed: bool, coloured: bool) -> Segment:
    place = 1.0 if not math.isfinite(value) else (0.5 + value / top / 2 if signed else value / top)
    stops, glyphs = (CHANGE, CHANGE_SHADES) if signed else (HEAT, SHADES)
    if cell < 5:
        if coloured:
            return Segment(" " * cell, paper=between(stops, place))
        return Segment(cell * glyphs[min(len(glyphs) - 1, int(max(0.0, place) * len(glyphs)))], "label")
    sign = "+" if signed and value > 0 else ""
    if is_share:
        percent = 100 * value
        text = (
            f"{sign}{percent:.0f}" if abs(percent) >= 0.5 or value == 0 else "<1" if not signed else f"{percent:+.1f}"
        )
    else:
        text = f"{sign}{value:.1f}" if math.isfinite(value) else "inf"
    if not coloured:
        return Segment(text.rjust(cell - 1) + " ", "number")
    paper = between(stops, place)
    return Segment(text.rjust(cell - 1) + " ", "number", ink=readable_on(paper), paper=paper)


def side_by_side(blocks: list[list[Line]], room: int, *, gap: int = 3) -> list[Line]:
    """Blocks from left to right, as many per row as fit."""
    lines: list[Line] = []
    while blocks:
        taken, used = [], 0
        while blocks and (not taken or used + gap + _width_of(blocks[0]) <= room):
            used += _width_of(blocks[0]) + (gap if taken else 0)
            taken.append(blocks.pop(0))
        lines += [[]] if lines else []
        for n in range(max(map(len, taken))):
            line: Line = []
            for block in taken:
                line += [Segment(" " * gap)] if line else []
                own = block[n] if n < len(block) else []
                line += [*own, Segment(" " * (_width_of(block) - _line_width(own)))]
            lines.append(line)
    return lines


def _width_of(block: list[Line]) -> int:
    return max(map(_line_width, block))


def _line_width(line: Line) -> int:
    return sum(width(spot.text) for spot in line)
