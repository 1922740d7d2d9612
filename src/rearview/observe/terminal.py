"""What was seen, in the terminal: all heads as a table of figures, a head as a map, and what it does in sentences.

    >>> import torch
    >>> from rearview import MaskedSelfAttention
    >>> from rearview.observe import observe
    >>> layer = MaskedSelfAttention(8, 2)
    >>> with observe(layer, labels=["I", "love", "sushi"]) as seen:
    ...     out = layer(torch.zeros(1, 3, 8))
    >>> print(show(seen, 0, 1))    # doctest: +ELLIPSIS
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

A drawing is text that prints as itself. On a terminal it is coloured, two pixels a character.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections import Counter
from typing import IO, TYPE_CHECKING, Any

from rearview.masks.frame import whole_number
from rearview.masks.labels import counted, cut
from rearview.masks.labels import width as cells_of
from rearview.observe.changing import CHANGE_METRICS, Change, base_of, change_figures, change_sentences, looks_at
from rearview.observe.colour import depth_of
from rearview.observe.diff import SeenDiff
from rearview.observe.heat import HeatDrawing, Line, Spot, beside, heat_map, heat_table, ramp
from rearview.observe.looking import Look, telling_links
from rearview.observe.scales import CHANGE_SCALES, SCALES, check_scale, shaded
from rearview.observe.sentences import METRICS, figures, sentences, share

if TYPE_CHECKING:
    from rearview.observe.layer import Layer
    from rearview.observe.seen import Seen

# In a pipe there is no width to ask for.
PIPE_WIDTH, LEAST_WIDTH = 100, 60
# A map of one head, and of several side by side, in bins a side.
LARGE, SMALL = 64, 20
TOLD, OF_A_KIND, LINKS = 6, 2, 8


def show(
    seen: Seen | SeenDiff,
    layer: int | str | Layer | None = None,
    head: int | None = None,
    *,
    scale: str = "log",
    width: int | None = None,
    item: int = 0,
    file: IO[str] | None = None,
) -> HeatDrawing:
    """A drawing of all heads, of those of a layer, or of one; see `Seen.show`.

    Args:
        layer, head: which; all unless given.
        scale: of the maps: "log", "linear", "without_first" or "expected". Of a difference "log" or "linear".
        width: in characters; by default that of the terminal.
        item: the batch item; a difference has its own.
        file: where to write it too, in colour if it is a terminal that has colours.
    """
    check_scale(scale, CHANGE_SCALES if isinstance(seen, SeenDiff) else SCALES)
    room = whole_number(width, "width", at_least=LEAST_WIDTH) if width is not None else _room(file)
    looks = looks_at(seen, layer, item=item)
    rows = [
        (look, row)
        for look in looks
        for row, number in enumerate(_layer_of(look).heads)
        if head is None or row == _layer_of(look).row_of(head)
    ]

    def composed(coloured: bool) -> list[Line]:
        if len(rows) == 1:
            return _one(seen, *rows[0], scale, room, coloured=coloured)
        if layer is not None or head is not None:
            return _several(rows, scale, room, coloured=coloured)
        return _all(seen, looks, room, coloured=coloured)

    drawing = HeatDrawing(composed(False), composed(True))
    if file is not None:
        print(drawing.painted(depth_of(file)), file=file, flush=True)
    return drawing


def _room(file: IO[str] | None) -> int:
    to = file or sys.stdout
    return max(LEAST_WIDTH, shutil.get_terminal_size().columns) if to is not None and to.isatty() else PIPE_WIDTH


def _layer_of(look: Look | Change) -> Layer:
    return base_of(look).layer


def _title(look: Look | Change, row: int) -> str:
    layer = _layer_of(look)
    kind = f" ({layer.kind})" if layer.kind == "cross" else ""
    return f"layer {layer.index}{kind} head {layer.heads[row]}"


def _said(look: Look | Change, row: int) -> list[str]:
    return change_sentences(look, row) if isinstance(look, Change) else sentences(look, row)


def _one(seen: Seen | SeenDiff, look: Look | Change, row: int, scale: str, room: int, *, coloured: bool) -> list[Line]:
    """One head: its map, what the colours mean, what it does, its strongest links."""
    base = base_of(look)
    size = f"{counted(base.stop - base.start, 'query', 'queries')} x {counted(base.k_len, 'key', 'keys')}"
    lines: list[Line] = [[Spot(f"{_title(look, row)}  ·  {base.layer.name}  ·  {size}", "title")], []]
    lines += heat_map(look, row, scale, room=room, most=LARGE, coloured=coloured)
    lines += [[], *ramp(shaded(look, row, scale), coloured=coloured), []]
    lines += _wrapped(_said(look, row), room)
    if isinstance(look, Look) and not isinstance(seen, SeenDiff):
        links = telling_links(seen, look, row, k=LINKS)
        lines += [[], [Spot(" strongest links", "title")]] if links else []
        lines += [_link(look, link.query, link.key, link.weight) for link in links]
    return lines


def _several(rows: list[tuple[Any, int]], scale: str, room: int, *, coloured: bool) -> list[Line]:
    """Small maps side by side, each under its name."""
    blocks = []
    for look, row in rows:
        block = heat_map(look, row, scale, room=room, most=SMALL, coloured=coloured, labelled=False)
        blocks.append([[Spot(f" {_title(look, row)}", "title")], *block])
    lines = beside(blocks, room)
    lines += [[], *ramp(shaded(*rows[0], scale), coloured=coloured, of_each=scale in ("linear", "without_first")), []]
    for look, row in rows:
        lines += _wrapped([f"{_title(look, row)}: {_said(look, row)[0]}"], room)
    return lines


def _all(seen: Seen | SeenDiff, looks: Any, room: int, *, coloured: bool) -> list[Line]:
    """Every head: two figures of each, the most telling sentences, the strongest links."""
    is_change = isinstance(seen, SeenDiff)
    metrics, of = (CHANGE_METRICS, change_figures) if is_change else (METRICS, figures)
    names = ("moved", "sinks") if is_change else ("first_1", "entropy")
    values = [[of(look, row) for row in range(len(_layer_of(look).heads))] for look in looks]
    heads = sum(map(len, values))
    title = "What changed" if isinstance(seen, SeenDiff) else seen.title or "What attention does"
    length = seen.before.length if isinstance(seen, SeenDiff) else seen.length
    facts = [title, f"{counted(len(looks), 'layer', 'layers')}, {counted(heads, 'head', 'heads')}",
             counted(length, "position", "positions")]  # fmt: skip
    lines: list[Line] = [[Spot("  ·  ".join(facts), "title")], [Spot(" rows: layers, columns: heads", "remark")], []]
    layers = [_layer_of(look) for look in looks]
    tables = [
        heat_table(layers, [[each[name] for each in row] for row in values], metrics[name], room, coloured=coloured)
        for name in names
    ]
    lines += [*beside(tables, room), []]
    lines += _wrapped(_telling(looks), room)
    if not isinstance(seen, SeenDiff):
        found = [(look, link) for look in looks for row in range(len(look.layer.heads))
                 for link in telling_links(seen, look, row, k=LINKS)]  # fmt: skip
        found.sort(key=lambda pair: -pair[1].weight)
        lines += [[], [Spot(" strongest links", "title")]] if found else []
        lines += [
            [
                Spot(f" layer {look.layer.index} head {link.head:<3}", "remark"),
                *_link(look, link.query, link.key, link.weight),
            ]
            for look, link in found[:LINKS]
        ]
    most = max(((look, row) for look in looks for row in range(len(_layer_of(look).heads))), key=lambda at: _apart(*at))
    layer, number = _layer_of(most[0]).index, _layer_of(most[0]).heads[most[1]]
    lines += [[], [Spot(f" to see one head: seen.show({layer}, {number}), or --show {layer}.{number}", "remark")]]
    return lines


def _apart(look: Look | Change, row: int) -> float:
    """How far a head is from uniform attention, or from what it was: the share that would have to move."""
    if isinstance(look, Change):
        return float(look.diff.moved[row])
    uniform = look.uniform[min(row, len(look.uniform) - 1)]
    return float((look.map[row] - uniform).abs().sum(-1).mean())


def _telling(looks: Any) -> list[str]:
    """The first sentence of the heads that stand out most, of several kinds where there are."""
    places = [(look, row) for look in looks for row in range(len(_layer_of(look).heads))]
    places.sort(key=lambda place: -_apart(*place))
    told: list[str] = []
    kinds: Counter[str] = Counter()
    for look, row in places:
        said = _said(look, row)[0]
        # To the first key, to the one before, to some key: not which.
        kind = "".join(said.partition(" of the weight ")[2].partition(";")[0].split("key ")[:1])
        if kinds[kind] < OF_A_KIND:
            told.append(f"{_title(look, row)}: {said}")
        kinds[kind] += 1
    return told[:TOLD]


def _link(look: Look, query: int, key: int, weight: float) -> Line:
    def named(position: int, labels: list[str] | None) -> str:
        word = labels[position] if labels is not None and position < len(labels) else ""
        return f"{position:>6,} {cut(word, 14)}".rstrip()

    left = named(query, look.query_labels)
    return [
        Spot(f" {left}" + " " * max(1, 23 - cells_of(left)), "label"),
        Spot(f"hears {named(key, look.key_labels).strip()}".ljust(26), "label"),
        Spot(f"{share(weight):>11}", "heard"),
    ]


def _wrapped(texts: list[str], room: int) -> list[Line]:
    lines = []
    for text in texts:
        # A number and its percent sign stay on one line.
        for n, part in enumerate(textwrap.wrap(text.replace(" %", "\N{NO-BREAK SPACE}%"), room - 4)):
            lines.append([Spot(f" {'  ' if n else ''}{part}".replace("\N{NO-BREAK SPACE}", " "), "label")])
    return lines
