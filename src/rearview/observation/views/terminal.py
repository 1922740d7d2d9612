"""An observation in the terminal: all heads as a table of figures, one head as a map with sentences about it.

    >>> import torch
    >>> from rearview import MaskedSelfAttention
    >>> from rearview.observation import observe
    >>> layer = MaskedSelfAttention(8, 2)
    >>> with observe(layer, labels=["I", "love", "sushi"]) as seen:
    ...     out = layer(torch.zeros(1, 3, 8))
    >>> print(seen.show(0, 1))    # doctest: +ELLIPSIS
    layer 0 head 1  ·  MaskedSelfAttention  ·  3 queries x 3 keys
    <BLANKLINE>
              0 1 2
                  s
                l u
                o s
                v h
              I e i
      0 I     @@
      1 love  @@@@
      2 sushi %%%%%%
    <BLANKLINE>
     @ 100 %   + 1 %   . under 0.01 %   share of a query's attention, log   blank: may not be heard
    <BLANKLINE>
     61.1 % of the weight goes to the first key; uniform attention would give it 61.1 %.
    ...

A drawing is a string. On a terminal it is coloured, with two cells of the map per character.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from typing import IO, TYPE_CHECKING

from rearview.drawing.cells import counted, cut, wrapped
from rearview.drawing.cells import width as cells_of
from rearview.masks.frame import whole_number
from rearview.observation.views.heat_map import HeatDrawing, Line, Segment, heat_map, heat_table, ramp, side_by_side
from rearview.observation.views.layer_change import MapView
from rearview.observation.views.layer_view import LayerView
from rearview.observation.views.sentences import share
from rearview.observation.views.terminal_colours import depth_of

if TYPE_CHECKING:
    from rearview.observation.result.display import Display
    from rearview.observation.result.layer import Layer, Link

# The width for a pipe, which has none.
PIPE_WIDTH, LEAST_WIDTH = 100, 60
# The most bins per side of the map of one head, and of several heads side by side.
LARGE, SMALL = 64, 20
# The most sentences about all heads, the most of one kind, and the most links.
TOLD, OF_A_KIND, LINKS = 6, 2, 8
# The figures in the tables of all heads.
FIGURES, CHANGE_FIGURES = ("first_1", "entropy"), ("moved", "sinks")


def show(
    display: Display,
    layer: int | str | Layer | None,
    head: int | None,
    *,
    scale: str,
    width: int | None,
    item: int,
    file: IO[str] | None,
) -> HeatDrawing:
    """A drawing of all heads, of those of a layer, or of one head; see `Observation.show`."""
    display._check_scale(scale)
    room = whole_number(width, "width", at_least=LEAST_WIDTH) if width is not None else _room(file)
    views = display._views(layer, item=item)
    rows = [
        (view, row)
        for view in views
        for row in range(len(view.base.layer.heads))
        if head is None or row == view.base.layer.row_of(head)
    ]

    def composed(coloured: bool) -> list[Line]:
        if len(rows) == 1:
            return _one(*rows[0], scale, room, coloured=coloured)
        if layer is not None or head is not None:
            return _several(rows, scale, room, coloured=coloured)
        return _all(display, rows, room, coloured=coloured)

    drawing = HeatDrawing(composed(False), composed(True))
    if file is not None:
        print(drawing.painted(depth_of(file)), file=file, flush=True)
    return drawing


def _room(file: IO[str] | None) -> int:
    to = file or sys.stdout
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns) if to is not None and to.isatty() else PIPE_WIDTH


def _title(view: MapView, row: int) -> str:
    layer = view.base.layer
    kind = f" ({layer.kind})" if layer.kind == "cross" else ""
    return f"layer {layer.index}{kind} head {layer.heads[row]}"


def _one(view: MapView, row: int, scale: str, room: int, *, coloured: bool) -> list[Line]:
    """One head: its map, the legend, sentences about it, its strongest links."""
    base = view.base
    size = f"{counted(base.stop - base.start, 'query', 'queries')} x {counted(base.k_len, 'key', 'keys')}"
    lines: list[Line] = [[Segment(f"{_title(view, row)}  ·  {base.layer.name}  ·  {size}", "title")], []]
    lines += heat_map(view, row, scale, room=room, most=LARGE, coloured=coloured)
    lines += [[], *ramp(view.shaded(row, scale), coloured=coloured), []]
    lines += _paragraphs(view.sentences(row), room)
    links = view.links(row, k=LINKS)
    lines += [[], [Segment(" strongest links", "title")]] if links else []
    lines += [_link(base, link) for link in links]
    return lines


def _several(rows: list[tuple[MapView, int]], scale: str, room: int, *, coloured: bool) -> list[Line]:
    """Small maps side by side, each under its name."""
    blocks = []
    for view, row in rows:
        block = heat_map(view, row, scale, room=room, most=SMALL, coloured=coloured, labelled=False)
        blocks.append([[Segment(f" {_title(view, row)}", "title")], *block])
    lines = side_by_side(blocks, room)
    view, row = rows[0]
    legend = ramp(view.shaded(row, scale), coloured=coloured, of_each=scale in ("linear", "without_first"))
    lines += [[], *legend, []]
    for view, row in rows:
        lines += _paragraphs([f"{_title(view, row)}: {view.sentences(row)[0]}"], room)
    return lines


def _all(display: Display, rows: list[tuple[MapView, int]], room: int, *, coloured: bool) -> list[Line]:
    """Every head: two figures of each, the most telling sentences, the strongest links."""
    views = list({id(view): view for view, _ in rows}.values())
    facts = [
        display.headline,
        f"{counted(len(views), 'layer', 'layers')}, {counted(len(rows), 'head', 'heads')}",
        counted(display.length, "position", "positions"),
    ]
    legend = " rows: layers, columns: heads"
    lines: list[Line] = [[Segment("  ·  ".join(facts), "title")], [Segment(legend, "remark")], []]
    layers = [view.base.layer for view in views]
    values = [[view.figures(row) for row in range(len(view.base.layer.heads))] for view in views]
    tables = [
        heat_table(
            layers, [[each[name] for each in row] for row in values], views[0].metrics[name], room, coloured=coloured
        )
        for name in (CHANGE_FIGURES if views[0].is_change else FIGURES)
    ]
    lines += [*side_by_side(tables, room), []]
    rows = sorted(rows, key=lambda place: -float(place[0].contrast[place[1]]))
    lines += _paragraphs(_telling(rows), room)
    found = [(view.base, link) for view, row in rows for link in view.links(row, k=LINKS)]
    found.sort(key=lambda pair: (-pair[1].weight, pair[1].layer, pair[1].head))
    lines += [[], [Segment(" strongest links", "title")]] if found else []
    lines += [
        [Segment(f" layer {link.layer} head {link.head:<3}", "remark"), *_link(base, link)]
        for base, link in found[:LINKS]
    ]
    most, row = rows[0][0].base.layer, rows[0][1]
    place = (most.index, most.heads[row])
    hint = f" to see one head: seen.show({place[0]}, {place[1]}), or --show {place[0]}.{place[1]}"
    lines += [[], [Segment(hint, "remark")]]
    return lines


def _telling(rows: list[tuple[MapView, int]]) -> list[str]:
    """The first sentence about each of the first heads, with few of one kind."""
    told: list[str] = []
    kinds: Counter[str] = Counter()
    for view, row in rows:
        said = view.sentences(row)[0]
        # The kind is where the weight goes (the first key, the previous position, some key), not which key it is.
        kind = "".join(said.partition(" of the weight ")[2].partition(";")[0].split("key ")[:1])
        if kinds[kind] < OF_A_KIND:
            told.append(f"{_title(view, row)}: {said}")
        kinds[kind] += 1
    return told[:TOLD]


def _link(view: LayerView, link: Link) -> Line:
    def named(position: int, labels: list[str] | None) -> str:
        word = labels[position] if labels is not None and position < len(labels) else ""
        return f"{position:>6,} {cut(word, 14)}".rstrip()

    left = named(link.query, view.query_labels)
    return [
        Segment(f" {left}" + " " * max(1, 23 - cells_of(left)), "label"),
        Segment(f"hears {named(link.key, view.key_labels).strip()}".ljust(26), "label"),
        Segment(f"{share(link.weight):>11}", "heard"),
    ]


def _paragraphs(texts: list[str], room: int) -> list[Line]:
    return [[Segment(f" {line}", "label")] for text in texts for line in wrapped(text, room - 2, later="  ")]
