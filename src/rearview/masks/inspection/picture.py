"""A mask as a picture, `.svg`, `.png` or `.pdf`.

    >>> from rearview import causal
    >>> causal().save_picture("causal.svg", "I love sushi very much")    # doctest: +SKIP

The same mask gives the same bytes: no date, no random ids. In an SVG words stay text, and each cell is a path whose
group is named `heard`, `blocked`, `full`, `partial` or `skipped`.
"""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from rearview.drawing.cells import counted, width
from rearview.drawing.figure import COLOURS, INK, LONGEST_WORD, OWN, QUIET, draw_labels, fits_across, rendered, word_of
from rearview.drawing.text import CellRole, Label
from rearview.files import target_of, write_whole
from rearview.masks.inspection.axes import Axes, Tokens
from rearview.masks.inspection.hearing import hearing_of, refuse_endless_drawing
from rearview.masks.inspection.terminal import CPU, blocks_for, cells_of, header, labels_of
from rearview.masks.item import item_of
from rearview.masks.mask import Mask
from rearview.masks.tiles import Tiles

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Canvas
    from matplotlib.figure import Figure

ENDINGS = (".svg", ".png", ".pdf")
MOST_CELLS = 48

MEANINGS: dict[CellRole, str] = {
    "heard": "heard",
    "blocked": "blocked",
    "full": "all heard",
    "partial": "some heard",
    "skipped": "none heard",
}


def save_picture(
    mask: Mask,
    path: str | os.PathLike[str],
    tokens: Tokens,
    keys: Tokens | None = None,
    *,
    q_start: int | None = None,
    batch: int = 0,
    head: int = 0,
) -> None:
    """Write the mask of one batch item and head; see `Mask.save_picture`."""
    target = target_of(path, ENDINGS)
    axes = Axes.of(tokens, keys, q_start)
    frame, one = axes.frame, item_of(mask, batch=batch, head=head)
    refuse_endless_drawing(mask, frame)
    block = blocks_for(frame, MOST_CELLS)
    kind = Tiles.of(one, frame, block=block, device=CPU).kind[0, 0]
    cells = cells_of(kind, single=block == (1, 1))
    rows = labels_of(axes.queries, frame.q_start, frame.q_len, block[0])
    columns = labels_of(axes.keys, 0, frame.k_len, block[1])
    title = header(mask, axes, hearing_of(mask, frame), batch=batch, head=head)
    if block != (1, 1):
        size = f"{counted(block[0], 'query', 'queries')} x {counted(block[1], 'key', 'keys')}"
        title += f"  ·  one cell is {size}"
    data = rendered(
        lambda: _figure(cells, rows, columns, title, block=block),
        target.suffix.lower(),
        needed_for="A picture of a mask",
    )
    write_whole(target, data)


def _figure(
    cells: list[list[CellRole]],
    rows: list[Label],
    columns: list[Label],
    title: str,
    *,
    block: tuple[int, int],
) -> Figure:
    from matplotlib.figure import Figure

    many = max(len(rows), len(columns))
    # Inches per cell: roomy for a sentence, small enough that the largest picture fits a page.
    cell = max(0.16, min(0.62, 9.0 / many))
    side = 0.55 + 0.085 * max(width(word_of(row, LONGEST_WORD)) for row in rows)
    across = fits_across(columns, cell)
    above = 0.45 if across else 0.4 + 0.085 * max(width(word_of(column, LONGEST_WORD)) for column in columns)
    wide, high = cell * len(columns), cell * len(rows)
    expression, _, facts = title.partition("  ·  ")
    full_width = max(side + wide + 0.3, 5.2)
    lines = textwrap.wrap(expression, max(20, int((full_width - 0.4) / 0.115)), break_long_words=True)
    top = 0.42 + 0.24 * len(lines)
    bottom = 0.6
    full_height = top + above + high + bottom
    figure = Figure(figsize=(full_width, full_height))
    canvas = figure.add_axes((side / full_width, bottom / full_height, wide / full_width, high / full_height))
    canvas.set_xlim(0, len(columns))
    canvas.set_ylim(len(rows), 0)
    canvas.axis("off")
    _cells(canvas, cells)
    _own_positions(canvas, rows, columns, block)
    draw_labels(canvas, rows, columns, (cell, cell), across)
    y = 1 - 0.3 / full_height
    for line in lines:
        figure.text(0.2 / full_width, y, line, size=13, color=INK, family="monospace", weight="bold", parse_math=False,
                    va="center")  # fmt: skip
        y -= 0.24 / full_height
    figure.text(0.2 / full_width, y, facts, size=9.5, color=QUIET, parse_math=False, va="center")
    _legend(figure, cells, full_width, full_height)
    return figure


def _cells(canvas: Canvas, cells: list[list[CellRole]]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    # One group for each kind of cell, a path for each cell: light to draw and easy to count.
    gap = 0.04
    for role in COLOURS:
        places = [(c, r) for r, row in enumerate(cells) for c, here in enumerate(row) if here == role]
        if not places:
            continue
        patches = [Rectangle((c + gap, r + gap), 1 - 2 * gap, 1 - 2 * gap) for c, r in places]
        canvas.add_collection(PatchCollection(patches, facecolor=COLOURS[role], linewidth=0, gid=role))


def _own_positions(canvas: Canvas, rows: list[Label], columns: list[Label], block: tuple[int, int]) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    # Where a query meets its own key: the line between past and future.
    end = columns[-1].position + block[1]
    own = [
        (key, r)
        for r, row in enumerate(rows)
        for key in range(max(0, row.position) // block[1], (min(row.position + block[0], end) - 1) // block[1] + 1)
    ]
    marks = [Rectangle((c + 0.07, r + 0.07), 0.86, 0.86) for c, r in own]
    outline = PatchCollection(marks, facecolor="none", edgecolor=OWN, linewidth=1.6, gid="own")
    canvas.add_collection(outline)


def _legend(figure: Figure, cells: list[list[CellRole]], wide: float, high: float) -> None:
    from matplotlib.patches import Rectangle

    present = {role for row in cells for role in row}
    shown = [(COLOURS[role], "none", MEANINGS[role]) for role in MEANINGS if role in present]
    shown.append(("none", OWN, "own position"))
    x, y, side = 0.2, 0.2, 0.15
    for face, edge, meaning in shown:
        box = Rectangle((x / wide, y / high), side / wide, side / high, facecolor=face, edgecolor=edge, linewidth=1.6)
        figure.add_artist(box)
        figure.text((x + side + 0.08) / wide, (y + side / 2) / high, meaning, size=8.5, color=QUIET, va="center")
        x += side + 0.35 + 0.075 * len(meaning)
    figure.text((wide - 0.2) / wide, (y + side / 2) / high, "rows: queries, columns: keys", size=8.5, color=QUIET,
                ha="right", va="center")  # fmt: skip
