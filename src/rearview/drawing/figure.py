"""What all pictures share: colours, fonts, labels of rows and columns, and a matplotlib figure as the bytes of a file.

The same figure gives the same bytes: there is no date and no random id. In an SVG, text remains text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rearview.drawing.cells import cut, width
from rearview.drawing.palette import LIGHT
from rearview.drawing.text import CellRole, Label
from rearview.errors import MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Canvas
    from matplotlib.figure import Figure

INK, QUIET, PAPER = LIGHT["ink"], LIGHT["quiet"], LIGHT["card"]
COLOURS: dict[CellRole, str] = {
    "heard": LIGHT["teal"],
    "blocked": LIGHT["blocked"],
    "full": LIGHT["teal"],
    "partial": LIGHT["heat-2"],
    "skipped": LIGHT["blocked"],
}
# The outline of the cell of a query and the key at the same position.
OWN = LIGHT["glow"]
# The largest number of characters of a label; longer words are cut.
LONGEST_WORD = 14

# Common fonts for words that the default font does not cover. Fonts that are not installed are skipped.
OTHER_FONTS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Source Han Sans SC", "PingFang SC", "Hiragino Sans", "Microsoft YaHei",
    "Yu Gothic", "Malgun Gothic", "WenQuanYi Micro Hei", "Noto Sans Arabic", "Noto Sans Devanagari", "Noto Emoji",
)  # fmt: skip

# How matplotlib begins its warning of a character that no font has.
MISSING_GLYPH = re.compile(r"Glyph (\d+) .*missing from")


def rendered(draw: Callable[[], Figure], ending: str, *, needed_for: str) -> bytes:
    """The figure that `draw` returns, as the bytes of a file with this ending (`.svg`, `.png` or `.pdf`).

    `needed_for` is the subject of the error message for a missing matplotlib, such as "A picture of a mask".
    """
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtra("matplotlib", extra="pictures", needed_for=needed_for) from error
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "rearview",
        "font.family": ["DejaVu Sans", *_installed(OTHER_FONTS)],
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = io.BytesIO()
        metadata = {{".svg": "Date", ".pdf": "CreationDate"}.get(ending, "Software"): None}
        draw().savefig(data, format=ending[1:], dpi=160, facecolor=PAPER, metadata=metadata)
    _warn_again(caught, ending)
    return data.getvalue()


def _warn_again(caught: list[warnings.WarningMessage], ending: str) -> None:
    """What matplotlib warned of; the characters that no installed font has in one sentence."""
    missing: dict[str, None] = {}
    for each in caught:
        if found := MISSING_GLYPH.match(str(each.message)):
            missing[chr(int(found[1]))] = None
        else:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
    # In an SVG they remain text, and the program that shows it chooses the font.
    if missing and ending != ".svg":
        names = ", ".join(map(repr, missing))
        warnings.warn(
            f"no installed font has {names}: drawn as boxes. Write .svg, which keeps them as text, or install a font "
            "that has them, such as Noto Sans CJK or Noto Emoji",
            stacklevel=2,
        )


def _installed(names: tuple[str, ...]) -> list[str]:
    from matplotlib.font_manager import fontManager

    known = set(fontManager.get_font_names())
    return [name for name in names if name in known]


def word_of(label: Label, most: int) -> str:
    """The label of a row or column: its word, cut to `most` cells, or its position if it has no word."""
    return cut(label.word, most) or str(label.position)


def fits_across(columns: list[Label], cell: float) -> bool:
    """Whether the words fit horizontally above columns of `cell` inches."""
    return max(width(word_of(column, LONGEST_WORD)) for column in columns) * 0.095 <= cell


def draw_labels(
    canvas: Canvas,
    rows: list[Label],
    columns: list[Label],
    cell: tuple[float, float],
    across: bool,
    *,
    steps: tuple[int, int] | None = None,
) -> None:
    """Write the labels of rows and columns on a canvas where a cell is one unit wide and high.

    `cell` is the width and height of a cell in inches. With `across` the labels of columns are horizontal. `steps` =
    (r, c) labels only every r-th row and every c-th column.
    """
    size = 10 if min(cell) >= 0.25 else 7
    style = {"size": size, "color": INK, "parse_math": False}
    # In small cells that have no words, only every fourth position is written.
    crowded = min(cell) < 0.25 and not any(label.word for label in (*rows, *columns))
    row_step, column_step = steps or ((4, 4) if crowded else (1, 1))
    for n, row in enumerate(rows):
        if n % row_step == 0:
            canvas.text(-0.12 / cell[0], n + 0.5, word_of(row, LONGEST_WORD), ha="right", va="center", **style)
    for n, column in enumerate(columns):
        if n % column_step == 0:
            turn = {"ha": "center"} if across else {"ha": "center", "rotation": 90}
            canvas.text(n + 0.5, -0.1 / cell[1], word_of(column, LONGEST_WORD), va="bottom", **turn, **style)
