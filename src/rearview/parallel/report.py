"""A layout as text: the table that `print` shows, and a drawing of the positions of each rank."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from rearview.drawing.cells import counted, cut, in_bytes, percent, right
from rearview.drawing.text import GLYPHS, CellRole, Drawing, Piece, Role

if TYPE_CHECKING:
    from rearview.parallel.layout import Layout

# Beyond this number of ranks the table has a row for the least and the most, and the drawing the first ranks.
MOST_ROWS = 32
COLUMNS = 64
SCALE_STEP = 16
# Masks with data print long.
WIDEST_MASK = 100


def table(layout: Layout) -> Drawing:
    """Tokens, visible pairs, keys and bytes of each rank; the slowest rank; what an all-gather would bring."""
    heads = ["rank", "tokens", "visible pairs", "of the mean", "keys received", "in bytes"]
    mean = max(1.0, sum(layout.area) / layout.ranks)
    columns = (layout.tokens, layout.area, layout.keys_received)

    def row(name: str, tokens: int, area: int, keys: int) -> list[str]:
        share = f"{area / mean:.3f}"
        return [name, f"{tokens:,}", f"{area:,}", share, f"{keys:,}", in_bytes(keys * layout.key_bytes)]

    if layout.ranks <= MOST_ROWS:
        rows = [row(str(rank), *values) for rank, values in enumerate(zip(*columns, strict=True))]
    else:
        rows = [row("least", *map(min, columns)), row("most", *map(max, columns))]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines: list[list[Piece]] = [[Piece(header(layout), "title")], []]
    lines += [_cells(heads, widths, "label"), *(_cells(each, widths, "number") for each in rows), []]
    return Drawing.of_lines([*lines, *([Piece(text, "remark")] for text in _remarks(layout))])


def drawing(layout: Layout) -> Drawing:
    """One line per rank: a cell is a stretch of positions that the rank holds, or whose keys it receives."""
    cells = min(COLUMNS, layout.length)
    edges = torch.arange(cells + 1) * layout.length // cells
    shown = min(layout.ranks, MOST_ROWS)
    held, received = (torch.zeros(shown, cells + 1, dtype=torch.long) for _ in range(2))
    pieces = layout.pieces
    _mark(held, pieces.owners, pieces.starts, pieces.ends, edges)
    for runs, _ in layout.work.travelling(layout.owners, receivers=shown):
        _mark(received, runs.group, runs.starts, runs.ends, edges)
    scale = "".join(f"{int(edge):<{SCALE_STEP}}" for edge in edges[:-1:SCALE_STEP])
    lines: list[list[Piece]] = [[Piece(header(layout), "title")], [], [Piece(f" rank  {scale}", "label")]]
    for rank in range(shown):
        roles: Iterable[CellRole] = (
            "full" if own else "partial" if comes else "skipped"
            for own, comes in zip(held[rank, :-1].tolist(), received[rank, :-1].tolist(), strict=True)
        )
        lines.append([Piece(f"{right(str(rank), 5)}  ", "label"), *(Piece(GLYPHS[role], role) for role in roles)])
    if shown < layout.ranks:
        lines.append([Piece(f"       and {layout.ranks - shown:,} more ranks", "remark")])
    legend = f" {GLYPHS['full']} held   {GLYPHS['partial']} keys received   {GLYPHS['skipped']} neither"
    return Drawing.of_lines([*lines, [], [Piece(legend, "remark")]])


def header(layout: Layout) -> str:
    masks = [cut(repr(mask), WIDEST_MASK) for mask in layout.work.masks]
    if sum(layout.work.layers) > 1:
        masks = [f"{count} x {mask}" for mask, count in zip(masks, layout.work.layers, strict=True)]
    positions = counted(layout.length, "position", "positions")
    items = f" x {layout.work.items} items" if layout.work.items > 1 else ""
    ranks = counted(layout.ranks, "rank", "ranks")
    return f"{', '.join(masks)}  ·  {positions}{items} over {ranks}  ·  {layout.how}"


def _cells(texts: Iterable[str], widths: Iterable[int], role: Role) -> list[Piece]:
    line = "  ".join(right(text, width) for text, width in zip(texts, widths, strict=True))
    return [Piece(f" {line}", role)]


def _remarks(layout: Layout) -> list[str]:
    received, gathered = sum(layout.keys_received), sum(layout.keys_gathered)
    if received:
        times = f"an all-gather would bring {gathered / received:.1f} times as many"
        traffic = f" keys received  {percent(received, gathered)} of those of an all-gather: {times}"
    else:
        traffic = " keys received  none"
    layers = sum(layout.work.layers)
    counted_for = f"{counted(layout.key_bytes, 'byte', 'bytes')} per key and layer"
    if layers > 1:
        counted_for += f", {layers} layers"
    lines = [f" balance        the slowest rank has {layout.balance:.3f} times the mean area", traffic]
    lines.append(f" bytes          of a forward pass, at {counted_for}; a backward pass returns as many")
    for other in layout.others:
        share = percent(sum(other.keys_received), sum(other.keys_gathered))
        lines.append(f" not taken      {other.how}: {other.balance:.3f} times the mean, {share} of an all-gather")
    return lines


def _mark(
    lines: torch.Tensor, rank: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor, edges: torch.Tensor
) -> None:
    """Count the runs of positions that touch each cell; `lines` is [ranks, cells + 1]."""
    known = rank < len(lines)
    rank, starts, ends = rank[known], starts[known], ends[known]
    first = torch.searchsorted(edges, starts, right=True) - 1
    last = torch.searchsorted(edges, ends)
    steps = torch.zeros_like(lines)
    ones = torch.ones_like(rank)
    steps.index_put_((rank, first), ones, accumulate=True)
    steps.index_put_((rank, last), -ones, accumulate=True)
    lines += steps.cumsum(1)
