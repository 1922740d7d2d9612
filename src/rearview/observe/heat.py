"""Heat maps and heat tables in characters: half blocks in colour on a terminal, shades of text elsewhere.

>>> drawing = HeatDrawing([[Spot("#", "label")]], [[Spot("▀", ink=(255, 0, 0))]])
>>> str(drawing), drawing.painted(256)
('#', '\\x1b[38;5;196m▀\\x1b[0m')
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rearview.masks.drawing import Drawing, Piece, Role
from rearview.masks.labels import cut, left, letters, width
from rearview.observe.changing import Change, base_of
from rearview.observe.colour import FORBIDDEN, HEAT, MANY, SIDES, Colour, between, depth_of, painted, readable_on
from rearview.observe.looking import Look, short_name
from rearview.observe.scales import Shaded, shaded

if TYPE_CHECKING:
    from rearview.observe.layer import Layer

# From least to most; and from less over as much to more. A blank is what the mask forbids.
SHADES, SIDED = ".:-=+*#%@", "%=-.+*#"
# Up to so many rows, each has a line and a label of its own.
LABELLED = 32
LONGEST_WORD, TALLEST_WORD = 14, 8
QUIET: Colour = (140, 150, 160)


class Spot(NamedTuple):
    """A piece of a line: its text, what it is, and its colours where there are any."""

    text: str
    role: Role = "label"
    ink: Colour | None = None
    paper: Colour | None = None


Line = list[Spot]


class HeatDrawing(Drawing):
    """A drawing with a second form in colour. `str` is the plain one; on a terminal it shows itself in colour."""

    colours: list[Line]

    def __new__(cls, plain: list[Line], colours: list[Line]) -> HeatDrawing:
        pieces = [piece for line in plain for piece in [*_trimmed(line), Piece("\n", "label")]]
        drawing = super().__new__(cls, pieces[:-1])
        assert isinstance(drawing, HeatDrawing)
        drawing.colours = colours
        return drawing

    def painted(self, depth: int = MANY) -> str:
        """The form in colour, with so many colours; the plain one for 0."""
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


def _trimmed(line: Line) -> list[Piece]:
    pieces = [Piece(spot.text, spot.role) for spot in line]
    while pieces and not pieces[-1].text.rstrip():
        pieces.pop()
    if pieces:
        pieces[-1] = Piece(pieces[-1].text.rstrip(), pieces[-1].role)
    return pieces


def heat_map(
    look: Look | Change, row: int, scale: str, *, room: int, most: int, coloured: bool, labelled: bool = True
) -> list[Line]:
    """The map of a head in at most `room` characters and `most` bins a side."""
    base = base_of(look)
    is_small = max(base.map.shape[-2:]) <= min(LABELLED, most, (room - LONGEST_WORD - 12) // 2) and labelled
    margin = 8
    if not is_small:
        # Half blocks are one character wide, text takes two to be as wide as it is high.
        fits = room - margin - 2 if coloured else (room - margin - 2) // 2
        look = look.coarser(min(most, fits))
        base = base_of(look)
    result = shaded(look, row, scale)
    cells = result.shades.tolist()
    if is_small:
        return _with_words(base, result, cells, coloured)
    starts = [base.queries_of(n).start for n in range(len(cells))]
    rows = range(0, len(cells), 2) if coloured else range(len(cells))
    lines: list[Line] = [_positions(base, len(cells[0]), margin, 1 if coloured else 2)]
    for place, n in enumerate(rows):
        label = f"{starts[n]:,}" if place % 4 == 0 else ""
        spots = [Spot(label.rjust(margin - 1) + " ", "remark")]
        if coloured:
            below = cells[n + 1] if n + 1 < len(cells) else [None] * len(cells[n])
            spots += [_half(upper, lower, result) for upper, lower in zip(cells[n], below, strict=True)]
        else:
            spots.append(Spot("".join(2 * _glyph(shade, result) for shade in cells[n]), "label"))
        lines.append(spots)
    return lines


def _with_words(base: Look, result: Shaded, cells: list[list[float]], coloured: bool) -> list[Line]:
    """Each row with its token, each column with its token above it."""
    words = [_word(base.query_labels, base.queries_of(n), LONGEST_WORD) for n in range(len(cells))]
    above = [_word(base.key_labels, base.keys_of(n), TALLEST_WORD) for n in range(len(cells[0]))]
    digits = len(str(max(abs(base.start), base.stop)))
    longest = max(map(width, words))
    margin = digits + 3 + (longest + 1 if longest else 0)
    numbers = [str(base.keys_of(n).start) for n in range(len(cells[0]))]
    lines = [[Spot(" " * margin + line, "remark")] for line in [*_stacked(numbers), *_stacked(above)] if line.strip()]
    for n, row in enumerate(cells):
        label = f"  {base.queries_of(n).start:>{digits}} {words[n]}"
        spots = [Spot(left(label, margin), "label")]
        if coloured:
            spots += [Spot("  ", paper=_colour(shade, result)) for shade in row]
        else:
            spots.append(Spot("".join(2 * _glyph(shade, result) for shade in row), "label"))
        lines.append(spots)
    return lines


def _word(labels: Sequence[str] | None, positions: range, most: int) -> str:
    return cut(labels[positions.start], most) if labels and 0 <= positions.start < len(labels) else ""


def _stacked(texts: list[str]) -> list[str]:
    columns = [letters(text) for text in texts]
    tallest = max(map(len, columns))
    padded = [[" "] * (tallest - len(column)) + column for column in columns]
    return ["".join(left(column[n], 2) for column in padded) for n in range(tallest)]


def _positions(base: Look, columns: int, margin: int, cell: int) -> Line:
    line = ""
    for n in range(0, columns, 8):
        if width(line) <= cell * n:
            line = left(line, cell * n) + f"{base.keys_of(n).start:,} "
    return [Spot(" " * margin + line, "remark")]


def _half(upper: float, lower: float | None, result: Shaded) -> Spot:
    return Spot("▀", ink=_colour(upper, result), paper=None if lower is None else _colour(lower, result))


def _colour(shade: float, result: Shaded) -> Colour:
    return FORBIDDEN if math.isnan(shade) else between(SIDES if result.is_two_sided else HEAT, shade)


def _glyph(shade: float, result: Shaded) -> str:
    if math.isnan(shade):
        return " "
    glyphs = SIDED if result.is_two_sided else SHADES
    return glyphs[min(len(glyphs) - 1, int(shade * len(glyphs)))]


def ramp(result: Shaded, *, coloured: bool, of_each: bool = False) -> list[Line]:
    """What the shades mean. `of_each`: the ends differ from map to map."""
    low, middle, high = ("least", "", "most") if of_each else result.ends
    if coloured:
        bar = [Spot("█", ink=_colour(n / 23, result)) for n in range(24)]
        words = f" {high}{f'   (middle: {middle})' if middle else ''}"
        blocked = [Spot(f" {result.what}   ", "remark"), Spot("██", ink=FORBIDDEN), Spot(" may not be heard", "remark")]
        return [[Spot(f" {low} ", "remark"), *bar, Spot(words, "remark")], blocked]
    parts = [
        f"{_glyph(1, result)} {high}",
        f"{_glyph(0.5, result)} {middle}" if middle else "",
        f"{_glyph(0, result)} {low}",
        result.what,
        "blank: may not be heard",
    ]
    return [[Spot(" " + "   ".join(filter(None, parts)), "remark")]]


def heat_table(
    layers: Sequence[Layer],
    values: list[list[float]],
    metric: dict[str, object],
    room: int,
    *,
    coloured: bool,
) -> list[Line]:
    """One figure of every head: rows are layers, columns heads. Numbers where they fit, else shades."""
    several = len({layer.kind for layer in layers}) > 1
    names = [short_name(layer, several_kinds=several) for layer in layers]
    margin = max(6, *(len(name) + 2 for name in names))
    most = max(map(len, values))
    cell = next((size for size in (5, 2) if margin + most * size <= room), 1)
    finite = [abs(x) for row in values for x in row if math.isfinite(x)]
    top = float(str(metric.get("most", 0))) or max(finite, default=0.0) or 1.0
    unit = ", % of the weight" if metric["unit"] == "share" else ""
    lines: list[Line] = [[Spot(f" {metric['name']}{unit}", "title")]]
    longest = max(layers, key=lambda layer: len(layer.heads))
    step = 1 if cell == 5 else 8
    heads = [str(number) if n % step == 0 else "" for n, number in enumerate(longest.heads)]
    heading = "".join(
        head.rjust(cell - 1) + " " if cell == 5 else head.ljust(cell * step) for head in heads if cell == 5 or head
    )
    lines.append([Spot(" " * margin + heading, "remark")])
    signed = bool(metric.get("signed"))
    for name, row in zip(names, values, strict=True):
        spots = [Spot(name.rjust(margin - 1) + " ", "remark")]
        spots += [_figure(x, top, cell, metric["unit"] == "share", signed, coloured) for x in row]
        lines.append(spots)
    return lines


def _figure(value: float, top: float, cell: int, is_share: bool, signed: bool, coloured: bool) -> Spot:
    place = 1.0 if not math.isfinite(value) else (0.5 + value / top / 2 if signed else value / top)
    stops, glyphs = (SIDES, SIDED) if signed else (HEAT, SHADES)
    if cell < 5:
        if coloured:
            return Spot(" " * cell, paper=between(stops, place))
        return Spot(cell * glyphs[min(len(glyphs) - 1, int(max(0.0, place) * len(glyphs)))], "label")
    sign = "+" if signed and value > 0 else ""
    if is_share:
        percent = 100 * value
        text = (
            f"{sign}{percent:.0f}" if abs(percent) >= 0.5 or value == 0 else "<1" if not signed else f"{percent:+.1f}"
        )
    else:
        text = f"{sign}{value:.1f}" if math.isfinite(value) else "inf"
    if not coloured:
        return Spot(text.rjust(cell - 1) + " ", "number")
    paper = between(stops, place)
    return Spot(text.rjust(cell - 1) + " ", "number", ink=readable_on(paper), paper=paper)


def beside(blocks: list[list[Line]], room: int, *, gap: int = 3) -> list[Line]:
    """Blocks from left to right, as many in a row as fit."""
    lines: list[Line] = []
    while blocks:
        taken, used = [], 0
        while blocks and (not taken or used + gap + _wide(blocks[0]) <= room):
            used += _wide(blocks[0]) + (gap if taken else 0)
            taken.append(blocks.pop(0))
        lines += [[]] if lines else []
        for n in range(max(map(len, taken))):
            line: Line = []
            for block in taken:
                line += [Spot(" " * gap)] if line else []
                own = block[n] if n < len(block) else []
                line += [*own, Spot(" " * (_wide(block) - _length(own)))]
            lines.append(line)
    return lines


def _wide(block: list[Line]) -> int:
    return max(map(_length, block))


def _length(line: Line) -> int:
    return sum(width(spot.text) for spot in line)
