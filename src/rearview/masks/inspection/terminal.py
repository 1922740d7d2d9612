"""A mask in the terminal: which query hears which key, the ranges, the visible share, warnings.

    >>> from rearview import causal, window
    >>> (causal() & window(2)).show("I love sushi")
    causal() & window(2)  ·  3 queries x 3 keys  ·  55.6 % visible
    <BLANKLINE>
     query \\ key     0      1      2
                     I    love   sushi
     0  I            ■      ·      ·     [0, 1)
     1  love         ■      ■      ·     [0, 2)
     2  sushi        ·      ■      ■     [1, 3)
    <BLANKLINE>
     ■ heard   · blocked   [a, b) hears the keys from a up to, not including, b

Beyond 32 rows or columns a cell stands for a block of positions, so a million of them still fit on a screen.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rearview.drawing.cells import counted, percent, wrapped
from rearview.drawing.text import GLYPHS, CellRole, Drawing, Grid, Label, Piece
from rearview.masks.frame import Frame
from rearview.masks.inspection.axes import Axes, Tokens
from rearview.masks.inspection.hearing import Hearing, hearing_of, refuse_endless_drawing
from rearview.masks.inspection.warning import MaskWarning, warnings_from
from rearview.masks.item import item_of
from rearview.masks.mask import Mask
from rearview.masks.tiles import FULL, PARTIAL, Tiles

__all__ = ["Drawing", "draw"]

MOST_CELLS = 32
RANGES_NAMED = 3
LINE = 88
CPU = torch.device("cpu")


def draw(
    mask: Mask,
    tokens: Tokens,
    keys: Tokens | None = None,
    *,
    q_start: int | None = None,
    batch: int = 0,
    head: int = 0,
) -> Drawing:
    """The mask of one batch item and head over these tokens; see `Mask.show`.

    >>> from rearview import causal
    >>> draw(causal(), 1, 4).splitlines()[3]
    ' 3             ■  ■  ■  ■   [0, 4)'
    """
    axes = Axes.of(tokens, keys, q_start)
    frame, one = axes.frame, item_of(mask, batch=batch, head=head)
    refuse_endless_drawing(mask, frame)
    q_block, k_block = blocks_for(frame, MOST_CELLS)
    kind = Tiles.of(one, frame, block=(q_block, k_block), device=CPU).kind[0, 0]
    grid = Grid(
        cells=cells_of(kind, single=(q_block, k_block) == (1, 1)),
        rows=labels_of(axes.queries, frame.q_start, frame.q_len, q_block),
        columns=labels_of(axes.keys, 0, frame.k_len, k_block),
        notes=_ranges(one, frame, q_block),
        column_step=k_block,
    )
    hearing = hearing_of(mask, frame)
    pieces = [Piece(f"{header(mask, axes, hearing, batch=batch, head=head)}\n\n", "title"), *grid.pieces()]
    pieces += [Piece("\n", "label"), *_legend(one, q_block, k_block)]
    pieces += [Piece(f"\n{_written(warning)}", "warning") for warning in warnings_from(hearing, mask, frame)]
    return Drawing(pieces)


def header(mask: Mask, axes: Axes, hearing: Hearing, *, batch: int, head: int) -> str:
    """One line: the expression, the sizes, the batch item and head, the visible share."""
    frame = axes.frame
    area = int(hearing.keys[min(batch, hearing.keys.shape[0] - 1), min(head, hearing.keys.shape[1] - 1)].sum())
    parts = [repr(mask), axes.sizes]
    if frame.q_start != frame.k_len - frame.q_len:
        parts.append(f"queries from position {frame.q_start:,}")
    parts += [f"batch item {batch} of {mask.batch}"] if mask.batch is not None else []
    parts += [f"head {head} of {mask.heads}"] if mask.heads is not None else []
    return "  ·  ".join([*parts, f"{percent(area, frame.q_len * frame.k_len)} visible"])


def blocks_for(frame: Frame, most: int) -> tuple[int, int]:
    """Queries and keys per cell: powers of two that give at most `most` cells per side.

    >>> blocks_for(Frame.of(1_000_000), 32), blocks_for(Frame.of(1, 100), 32)
    ((32768, 32768), (1, 4))
    """
    q_block, k_block = (1 << (-(-length // most) - 1).bit_length() for length in (frame.q_len, frame.k_len))
    # Where both axes have blocks, equal sizes keep the diagonal a diagonal.
    larger = max(q_block, k_block)
    return (larger, larger) if min(q_block, k_block) > 1 else (q_block, k_block)


def cells_of(kind: Tensor, *, single: bool) -> list[list[CellRole]]:
    """The role of each cell; `single` means that a cell is one query and one key."""

    def role(value: int) -> CellRole:
        if single:
            return "heard" if value == FULL else "blocked"
        return "full" if value == FULL else "partial" if value == PARTIAL else "skipped"

    return [[role(value) for value in row] for row in kind.tolist()]


def labels_of(words: Sequence[str] | None, start: int, length: int, block: int) -> list[Label]:
    """The label of each row or column of cells."""
    single = words if words is not None and block == 1 else None
    return [Label(start + n, single[n] if single else "") for n in range(0, length, block)]


def _ranges(one: Mask, frame: Frame, q_block: int) -> list[str]:
    if not one.has_ranges:
        return [""] * -(-frame.q_len // q_block)
    rows = one.spans_in(frame, CPU).heard_by_any(q_block).rows()
    return [_listed(row) for row in rows]


def _listed(ranges: list[tuple[int, int]]) -> str:
    named = " ".join(f"[{start}, {end})" for start, end in ranges[:RANGES_NAMED])
    more = len(ranges) - RANGES_NAMED
    return f"{named} and {more} more" if more > 0 else named or "nothing"


def _legend(one: Mask, q_block: int, k_block: int) -> list[Piece]:
    if (q_block, k_block) == (1, 1):
        shown: dict[CellRole, str] = {"heard": "heard", "blocked": "blocked"}
        ranges, cell = "hears the keys from a up to, not including, b", ""
    else:
        shown = {"full": "all heard", "partial": "some heard", "skipped": "none heard"}
        ranges = f"keys that {'the query' if q_block == 1 else 'some query of the row'} hears"
        cells = f"{counted(q_block, 'query', 'queries')} x {counted(k_block, 'key', 'keys')}"
        cell = f"\n one cell is {cells}"
    if one.has_ranges:
        rest = f"   [a, b) {ranges}{cell}"
    else:
        rest = f"{cell}\n no range form: {one.range_obstacle}"
    return [*legend(shown), Piece(rest, "remark")]


def legend(shown: Mapping[CellRole, str]) -> list[Piece]:
    """The meaning of the glyphs, on one line."""
    pieces: list[Piece] = []
    for role, text in shown.items():
        pieces += [Piece(f"{'  ' if pieces else ''} {GLYPHS[role]}", role), Piece(f" {text}", "remark")]
    return pieces


def _written(warning: MaskWarning) -> str:
    return "\n".join(wrapped(f" ! {warning}", LINE, later="   "))
