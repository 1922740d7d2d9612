"""A drawing: a string whose pieces have roles, so that a terminal can colour it.

>>> from rearview.drawing.text import Drawing, Piece
>>> Drawing([Piece("■ ", "heard"), Piece("·", "blocked")])
■ ·
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from rearview.drawing.cells import centre, cut, left, letters, right, width

CellRole: TypeAlias = Literal[
    "heard", "blocked", "full", "partial", "skipped", "only first", "only second", "only one each", "forbidden"
]
# A number; an attention weight, from small to large; an increase and a decrease.
NumberRole: TypeAlias = Literal["number", "weight 1", "weight 2", "weight 3", "weight 4", "weight 5", "gained", "lost"]
Role: TypeAlias = CellRole | NumberRole | Literal["title", "label", "range", "remark", "warning"]

# Roles differ in shape, so that a drawing can be read without colour.
GLYPHS: dict[CellRole, str] = {
    "heard": "■",
    "blocked": "·",
    "full": "█",
    "partial": "▒",
    "skipped": "·",
    "only first": "-",
    "only second": "+",
    "only one each": "±",
    "forbidden": "!",
}

# If the labels of all columns fit into this many cells they are written horizontally, otherwise vertically.
SPREAD_WIDTH = 64
ROW_WORD, COLUMN_WORD, STACKED_WORD = 14, 10, 8
CORNER = "query \\ key"


class Piece(NamedTuple):
    """A part of a drawing, and what it is."""

    text: str
    role: Role


class Drawing(str):
    """The text of a drawing. `pieces` are its parts with their roles; their texts concatenate to the drawing."""

    pieces: tuple[Piece, ...]

    def __new__(cls, pieces: Iterable[Piece]) -> "Drawing":
        pieces = tuple(pieces)
        drawing = super().__new__(cls, "".join(piece.text for piece in pieces))
        drawing.pieces = pieces
        return drawing

    @staticmethod
    def of_lines(lines: Iterable[Iterable[Piece]]) -> "Drawing":
        """A drawing of these lines, without trailing spaces."""
        return Drawing(line_pieces(lines))

    def __repr__(self) -> str:
        return str(self)


def line_pieces(lines: Iterable[Iterable[Piece]]) -> list[Piece]:
    """The pieces of these lines with newlines between them, without trailing spaces."""
    pieces: list[Piece] = []
    for line in lines:
        line = list(line)
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Piece(line[-1].text.rstrip(), line[-1].role)
        pieces += [*line, Piece("\n", "label")]
    return pieces[:-1]


class Label(NamedTuple):
    """The label of a row or column: the position where it begins, and its word if it is a single token."""

    position: int
    word: str = ""


@dataclass(frozen=True)
class Grid:
    """A table of cells with labels for rows and columns, and a note at the right of each row."""

    cells: Sequence[Sequence[CellRole]]
    rows: Sequence[Label]
    columns: Sequence[Label]
    notes: Sequence[str]
    column_step: int
    """The number of keys per column. If it is above 1, only some columns are labelled, with their first position."""

    def pieces(self) -> list[Piece]:
        cell, head = self._heading()
        digits = max(len(str(row.position)) for row in self.rows)
        words = [cut(row.word, ROW_WORD) for row in self.rows]
        word_cells = max(map(width, words))
        margin = max(len(CORNER) + 1, digits + (2 + word_cells if word_cells else 0)) + 2
        corners = [f" {CORNER}"] + [""] * (len(head) - 1)
        above = zip(corners, head, strict=True)
        pieces = [Piece(f"{left(corner, margin)}{line}".rstrip() + "\n", "label") for corner, line in above]
        for row, word, roles, note in zip(self.rows, words, self.cells, self.notes, strict=True):
            label = f" {right(str(row.position), digits)}  {word}"
            pieces.append(Piece(left(label, margin), "label"))
            pieces += [Piece(_glyph(role, cell), role) for role in roles]
            if note:
                pieces.append(Piece(f"  {note}\n", "range"))
            else:
                pieces[-1] = Piece(pieces[-1].text.rstrip() + "\n", roles[-1])
        return pieces

    def _heading(self) -> tuple[int, list[str]]:
        """The width of a column in terminal cells, and the lines above the grid."""
        if self.column_step > 1:
            return 2, [self._scale()]
        words = [cut(column.word, COLUMN_WORD) for column in self.columns]
        numbers = [str(column.position) for column in self.columns]
        # An odd number of cells, so that a glyph can be centred.
        cell = (max(map(width, words + numbers)) + 2) | 1
        if cell * len(words) <= SPREAD_WIDTH:
            lines = [numbers, words] if any(words) else [numbers]
            return cell, ["".join(centre(text, cell) for text in line) for line in lines]
        words = [cut(column.word, STACKED_WORD) for column in self.columns]
        return 2, _stacked(numbers) + (_stacked(words) if any(words) else [])

    def _scale(self) -> str:
        line = ""
        for n, column in enumerate(self.columns):
            if n % 8 == 0 and width(line) <= 2 * n:
                line = left(line, 2 * n) + f"{column.position} "
        return line


def _stacked(texts: Sequence[str]) -> list[str]:
    columns = [letters(text) for text in texts]
    tallest = max(map(len, columns))
    columns = [[" "] * (tallest - len(column)) + column for column in columns]
    return ["".join(left(column[n], 2) for column in columns) for n in range(tallest)]


def _glyph(role: CellRole, cell: int) -> str:
    glyph = GLYPHS[role]
    # Two terminal cells are about as wide as a line is high, so a tile that fills both is a square.
    return glyph * 2 if cell == 2 and role in ("full", "partial") else centre(glyph, cell)
