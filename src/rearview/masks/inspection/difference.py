"""Where two masks differ at a size: exact counts, a drawing, and the first cells that differ.

>>> from rearview import causal, window
>>> print(causal().diff(window(2), 3))
- causal()  ·  1 pair is heard only here
+ window(2)  ·  0 pairs are heard only here
3 queries x 3 keys  ·  1 query differs
<BLANKLINE>
 query \\ key   0  1  2
 0             ■  ·  ·
 1             ■  ■  ·
 2             -  ■  ■
<BLANKLINE>
 ■ both   · neither   - only the first   + only the second
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch

from rearview.drawing.cells import counted
from rearview.drawing.text import CellRole, Drawing, Grid, Piece
from rearview.errors import BadArgument, Unsupported
from rearview.masks.frame import Frame
from rearview.masks.inspection.axes import Axes, Tokens
from rearview.masks.inspection.hearing import hearing_of, refuse_endless_drawing
from rearview.masks.inspection.terminal import CPU, MOST_CELLS, blocks_for, cells_of, labels_of, legend
from rearview.masks.item import item_of
from rearview.masks.mask import Mask
from rearview.masks.tiles import SKIPPED, Tiles

MOST_EXAMPLES = 8


class Cell(NamedTuple):
    """A pair of positions that only one of two masks allows."""

    batch: int
    head: int
    query: int
    key: int


@dataclass(frozen=True)
class MaskDiff:
    """The difference of two masks; pairs are counted over all batch items and heads for which either mask differs."""

    first: Mask
    second: Mask
    frame: Frame
    only_first: int
    """The number of pairs (query, key) that only the first mask allows."""
    only_second: int
    """The number of pairs that only the second mask allows."""
    rows: int
    """The number of queries for which the two differ, over batch items and heads."""
    examples: tuple[Cell, ...]
    """The first few pairs that differ, in order."""

    @property
    def same(self) -> bool:
        """Whether the two mean the same at this size."""
        return self.only_first == self.only_second == 0

    def __str__(self) -> str:
        return self._draw(Axes(self.frame, None, None))

    def show(self, tokens: Tokens, keys: Tokens | None = None) -> Drawing:
        """The drawing, with words at the rows and columns."""
        q_start = None if self.frame.q_start < 0 else self.frame.q_start
        axes = Axes.of(tokens, keys, q_start)
        if axes.frame != self.frame:
            expected = f"{self.frame.q_len} words, as compared, and {self.frame.k_len} keys"
            raise BadArgument("tokens", expected=expected, got=axes.sizes)
        return self._draw(axes)

    def _draw(self, axes: Axes) -> Drawing:
        if self.same:
            lines = f"- {self.first!r}\n+ {self.second!r}\n{axes.sizes}  ·  the same"
            return Drawing([Piece(lines, "title")])
        title = [
            Piece(f"- {self.first!r}  ·  {_only_here(self.only_first)}\n", "only first"),
            Piece(f"+ {self.second!r}  ·  {_only_here(self.only_second)}\n", "only second"),
        ]
        batch, head = self.examples[0].batch, self.examples[0].head
        both = self.first & self.second
        shown = [f"batch item {batch} of {both.batch}"] if both.batch is not None else []
        shown += [f"head {head} of {both.heads}"] if both.heads is not None else []
        # The first item that differs is the one that is drawn.
        rows = counted(self.rows, "query differs", "queries differ")
        drawn = f"  ·  drawn: {', '.join(shown)}" if shown else ""
        title.append(Piece(f"{axes.sizes}  ·  {rows}{drawn}", "title"))
        try:
            refuse_endless_drawing(both, self.frame)
        except Unsupported:
            return Drawing(title)
        return Drawing([*title, Piece("\n\n", "title"), *self._grid(axes, batch, head)])

    def _grid(self, axes: Axes, batch: int, head: int) -> list[Piece]:
        frame = self.frame
        block = blocks_for(frame, MOST_CELLS)
        single = block == (1, 1)

        def kind(mask: Mask) -> torch.Tensor:
            one = item_of(mask, batch=batch if mask.batch else 0, head=head if mask.heads else 0)
            return Tiles.of(one, frame, block=block, device=CPU).kind[0, 0]

        in_first, in_second = kind(self.first & ~self.second) != SKIPPED, kind(self.second & ~self.first) != SKIPPED
        cells = cells_of(kind(self.first), single=single)
        for row, column in (in_first | in_second).nonzero().tolist():
            first, second = bool(in_first[row, column]), bool(in_second[row, column])
            cells[row][column] = "only one each" if first and second else "only first" if first else "only second"
        grid = Grid(
            cells=cells,
            rows=labels_of(axes.queries, frame.q_start, frame.q_len, block[0]),
            columns=labels_of(axes.keys, 0, frame.k_len, block[1]),
            notes=[""] * len(cells),
            column_step=block[1],
        )
        meanings: dict[CellRole, str] = {"heard": "both", "blocked": "neither"}
        if not single:
            meanings = {"full": "all, in both", "partial": "some, in both", "skipped": "none"}
        meanings |= {"only first": "only the first", "only second": "only the second"}
        if any("only one each" in row for row in cells):
            meanings |= {"only one each": "some of either"}
        return [*grid.pieces(), Piece("\n", "title"), *legend(meanings)]


def _only_here(pairs: int) -> str:
    return f"{counted(pairs, 'pair is', 'pairs are')} heard only here"


def diff(first: Mask, second: Mask, q_len: int, k_len: int | None = None, *, q_start: int | None = None) -> MaskDiff:
    """Where two masks differ over `q_len` queries and `k_len` keys: from ranges in O(T) where both have them.

    >>> from rearview import causal, window
    >>> found = diff(causal(), window(2), 3)
    >>> found.only_first, found.only_second, found.examples
    (1, 0, (Cell(batch=0, head=0, query=2, key=0),))
    """
    if not isinstance(second, Mask):
        raise BadArgument("other", expected="a mask to compare with", got=repr(second))
    frame = Frame.of(q_len, k_len, q_start)
    only_first, only_second = first & ~second, second & ~first
    in_first, in_second = hearing_of(only_first, frame).keys, hearing_of(only_second, frame).keys
    rows = (in_first + in_second > 0).nonzero()
    examples: list[Cell] = []
    for batch, head, row in rows[:MOST_EXAMPLES].tolist():
        index = torch.tensor([row])
        differs = (only_first | only_second).visible_in(frame, CPU, index)[batch, head, 0]
        keys = differs.nonzero().flatten()[: MOST_EXAMPLES - len(examples)].tolist()
        examples += [Cell(batch, head, row + frame.q_start, key) for key in keys]
    return MaskDiff(first, second, frame, int(in_first.sum()), int(in_second.sum()), len(rows), tuple(examples))
