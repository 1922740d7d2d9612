"""What was seen as a picture for a paper: one head, the heads of a layer, or all of them; `.png`, `.svg` or `.pdf`.

    >>> seen.picture("head.pdf", layer=2, head=1, scale="expected")    # doctest: +SKIP

The same Seen gives the same bytes. Maps are images inside the file, words and numbers stay text in an SVG.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.errors import BadArgument
from rearview.masks.labels import counted, cut
from rearview.masks.picture import INK, QUIET, rendered
from rearview.masks.write import target_of, write_whole
from rearview.observe.changing import Change, base_of, looks_at
from rearview.observe.diff import SeenDiff
from rearview.observe.looking import Look, short_name
from rearview.observe.scales import CHANGE_SCALES, SCALES, Shaded, check_scale, shaded
from rearview.observe.sentences import figures, share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rearview.observe.layer import Layer
    from rearview.observe.seen import Seen

ENDINGS = (".png", ".svg", ".pdf")
HEAT = ("#ffffff", "#d3e8ee", "#86c0d1", "#2f8fad", "#0d5675", "#06263f")
SIDES = ("#a04f0a", "#d98a33", "#f6dcb4", "#fbfbfa", "#a6d3df", "#2a86a3", "#063a56")
FORBIDDEN, LINE = "#e9edf0", "#c9d2d9"
# Up to so many rows and columns each has its token beside it.
MOST_LABELLED = 40
LONGEST_WORD = 12
# A map in the picture of all heads: pixels a side, and between two.
SMALL, BETWEEN = 40, 4
ACROSS = 4


def save(
    seen: Seen | SeenDiff,
    path: str | os.PathLike[str],
    layer: int | str | Layer | None = None,
    head: int | None = None,
    *,
    scale: str = "log",
    item: int = 0,
) -> None:
    """Write the picture; see `Seen.picture`.

    Args:
        layer, head: one head; with a layer alone its heads; with neither all heads of all layers.
        scale: "log", "linear", "without_first" or "expected". Of a difference "log" or "linear".
        item: the batch item; a difference has its own.
    """
    target = target_of(path, ENDINGS)
    check_scale(scale, CHANGE_SCALES if isinstance(seen, SeenDiff) else SCALES)
    if head is not None and layer is None:
        raise BadArgument("head", expected="a layer beside it", came=f"head {head} alone")
    looks = looks_at(seen, layer, item=item)

    # A head that was not watched is said before anything is drawn.
    row = None if head is None else base_of(looks[0]).layer.row_of(head)

    def draw() -> Figure:
        if layer is None:
            return _everything(seen, looks, scale)
        return _layer(looks[0], scale) if row is None else _one(looks[0], row, scale)

    write_whole(target, rendered(draw, target.suffix.lower(), needed_for="A picture of attention"))


def _one(look: Look | Change, row: int, scale: str) -> Figure:
    """A large map with its tokens and, below it, what each key received."""
    from matplotlib.figure import Figure

    base, result = base_of(look), shaded(look, row, scale)
    rows, columns = result.shades.shape
    worded = base.is_exact and max(rows, columns) <= MOST_LABELLED and base.key_labels is not None
    side = 5.2
    left, above = (1.25, 1.6) if worded else (0.8, 0.95)
    high = max(1.5, min(side, side * (base.stop - base.start) / base.k_len))
    wide, tall = left + side + 0.3, above + high + 1.65
    figure = Figure(figsize=(wide, tall))
    figure.text(
        0.2 / wide, 1 - 0.3 / tall, _title(base, row), size=12, weight="bold", color=INK, va="center", parse_math=False
    )
    figure.text(0.2 / wide, 1 - 0.54 / tall, _about(base), size=8.5, color=QUIET, va="center", parse_math=False)
    area = (left / wide, (tall - above - high) / tall, side / wide, high / tall)
    canvas = figure.add_axes(area, gid="map")
    _draw(canvas, base, result)
    _ticks(canvas, base, worded)
    _received(figure, look, row, (left / wide, 0.95 / tall, side / wide, 0.5 / tall))
    _bar(figure, result, (left, 0.42), (wide, tall))
    return figure


def _draw(canvas: Axes, base: Look, result: Shaded) -> None:
    rows, columns = result.shades.shape
    extent = (0, columns * base.width, base.top + rows * base.width, base.top)
    canvas.imshow(
        result.shades.numpy(),
        cmap=_colours(result.is_two_sided),
        vmin=0,
        vmax=1,
        extent=extent,
        aspect="auto",
        interpolation="nearest",
    )
    # Bins may reach beyond the last key, and begin before the first query.
    canvas.set_xlim(0, base.k_len)
    canvas.set_ylim(base.stop, base.start)
    for spine in canvas.spines.values():
        spine.set_color(LINE)
    canvas.tick_params(length=2, labelsize=8, colors=QUIET)
    canvas.xaxis.tick_top()


def _ticks(canvas: Axes, base: Look, worded: bool) -> None:
    if not worded:
        from matplotlib.ticker import MaxNLocator

        canvas.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        canvas.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        return
    keys, queries = base.key_labels or [], base.query_labels or []
    places = [key + 0.5 for key in range(base.k_len)]
    canvas.set_xticks(
        places, [cut(keys[key], LONGEST_WORD) for key in range(base.k_len)], rotation=90, parse_math=False
    )
    rows = range(base.start, base.stop)
    words = [cut(queries[row], LONGEST_WORD) if 0 <= row < len(queries) else str(row) for row in rows]
    canvas.set_yticks([row + 0.5 for row in rows], words, parse_math=False)


def _received(figure: Figure, look: Look | Change, row: int, area: tuple[float, float, float, float]) -> None:
    canvas = figure.add_axes(area, gid="received")
    base = base_of(look)
    keys = torch.arange(base.k_len + 1).tolist()
    found = base.received[row] if isinstance(look, Look) else look.after.received[row] - look.before.received[row]
    canvas.stairs(found.tolist(), keys, fill=True, color="#2a86a3")
    if isinstance(look, Look):
        canvas.stairs(look.expected[min(row, len(look.expected) - 1)].tolist(), keys, color="#d97706", linewidth=1.0)
    canvas.set_xlim(0, base.k_len)
    canvas.tick_params(length=2, labelsize=7, colors=QUIET, bottom=False, labelbottom=False)
    for name, spine in canvas.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LINE)
    what = (
        "received by each key (line: by uniform attention)"
        if isinstance(look, Look)
        else "change of what each key receives"
    )
    canvas.set_xlabel(what, size=8, color=QUIET)


def _layer(look: Look | Change, scale: str) -> Figure:
    """Every head of a layer, with what the first key receives."""
    from matplotlib.figure import Figure

    base = base_of(look)
    heads = base.layer.heads
    across = min(ACROSS, len(heads))
    down = -(-len(heads) // across)
    side, gap, above = 1.8, 0.35, 0.85
    # What the figure says must fit, however few heads there are.
    wide, tall = max(4.6, 0.4 + across * (side + gap)), above + down * (side + gap + 0.1) + 0.75
    figure = Figure(figsize=(wide, tall))
    figure.text(0.2 / wide, 1 - 0.3 / tall, f"Layer {base.layer.index}", size=12, weight="bold", color=INK, va="center")
    figure.text(0.2 / wide, 1 - 0.54 / tall, _about(base), size=8.5, color=QUIET, va="center", parse_math=False)
    result = None
    for row, head in enumerate(heads):
        x, y = 0.3 + (row % across) * (side + gap), above + 0.25 + (row // across) * (side + gap + 0.1)
        canvas = figure.add_axes((x / wide, 1 - (y + side) / tall, side / wide, side / tall), gid=f"head-{head}")
        result = shaded(look, row, scale)
        _draw(canvas, base, result)
        canvas.set_xticks([])
        canvas.set_yticks([])
        canvas.set_title(_caption(look, row, head), size=8, color=INK, pad=3)
    assert result is not None
    _bar(figure, result, (0.3, 0.42), (wide, tall), of_each=_differs(look, scale))
    return figure


def _caption(look: Look | Change, row: int, head: int) -> str:
    if isinstance(look, Change):
        return f"head {head}: {share(float(look.diff.moved[row]))} moved"
    return f"head {head}: {share(figures(look, row)['first_1'])} on the first"


def _everything(seen: Seen | SeenDiff, looks: Sequence[Look | Change], scale: str) -> Figure:
    """All heads of all layers, small, as one image."""
    from matplotlib.figure import Figure

    most = max(len(base_of(look).layer.heads) for look in looks)
    step = SMALL + BETWEEN
    image = torch.full((len(looks) * step, most * step, 4), 0.0)
    result = None
    for n, look in enumerate(looks):
        for row in range(len(base_of(look).layer.heads)):
            small = look.coarser(SMALL)
            result = shaded(small, row, scale)
            pixels = _pixels(result, _colours(result.is_two_sided))
            image[n * step : n * step + SMALL, row * step : row * step + SMALL] = pixels
    assert result is not None
    side = max(0.28, min(0.7, 9.0 / most))
    wide, tall = max(4.6, 0.9 + most * side), 1.15 + len(looks) * side + 0.8
    figure = Figure(figsize=(wide, tall))
    title = "What changed" if isinstance(seen, SeenDiff) else seen.title or "What attention does"
    heads = sum(len(base_of(look).layer.heads) for look in looks)
    about = f"{counted(len(looks), 'layer', 'layers')} (rows), {counted(heads, 'head', 'heads')} in all"
    figure.text(0.2 / wide, 1 - 0.3 / tall, title, size=12, weight="bold", color=INK, va="center", parse_math=False)
    figure.text(0.2 / wide, 1 - 0.54 / tall, about, size=8.5, color=QUIET, va="center")
    area = (0.7 / wide, 0.8 / tall, most * side / wide, len(looks) * side / tall)
    canvas = figure.add_axes(area, gid="heads")
    canvas.imshow(image.numpy(), aspect="auto", interpolation="nearest", extent=(0, most, len(looks), 0))
    several = len({base_of(look).layer.kind for look in looks}) > 1
    names = [short_name(base_of(look).layer, several_kinds=several) for look in looks]
    longest = max((base_of(look).layer for look in looks), key=lambda layer: len(layer.heads))
    canvas.set_xticks([n + 0.45 for n in range(most)], [str(head) for head in longest.heads])
    canvas.set_yticks([n + 0.45 for n in range(len(looks))], names)
    canvas.tick_params(length=0, labelsize=7, colors=QUIET)
    canvas.xaxis.tick_top()
    for spine in canvas.spines.values():
        spine.set_visible(False)
    _bar(figure, result, (0.7, 0.42), (wide, tall), of_each=_differs(looks[0], scale))
    return figure


def _pixels(result: Shaded, colours: Any) -> Tensor:
    shades = F.interpolate(result.shades[None, None], size=(SMALL, SMALL), mode="nearest")[0, 0]
    return torch.from_numpy(colours(shades.numpy())).float()


def _differs(look: Look | Change, scale: str) -> bool:
    """Does each map have ends of its own?"""
    return isinstance(look, Change) or scale in ("linear", "without_first")


def _bar(
    figure: Figure, result: Shaded, corner: tuple[float, float], size: tuple[float, float], *, of_each: bool = False
) -> None:
    """The colours from end to end, with what they stand for."""
    wide, tall = size
    canvas = figure.add_axes((corner[0] / wide, corner[1] / tall, 2.2 / wide, 0.11 / tall), gid="colours")
    canvas.imshow(
        torch.linspace(0, 1, 256).unsqueeze(0).numpy(),
        aspect="auto",
        cmap=_colours(result.is_two_sided),
        extent=(0, 1, 0, 1),
    )
    ends = ("least of each", "", "most of each") if of_each and not result.is_two_sided else result.ends
    ends = ("most lost, of each", "", "most gained, of each") if of_each and result.is_two_sided else ends
    canvas.set_xticks([0, 0.5, 1], ends)
    canvas.set_yticks([])
    canvas.tick_params(length=2, labelsize=7, colors=QUIET)
    labels = canvas.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[2].set_horizontalalignment("right")
    for spine in canvas.spines.values():
        spine.set_color(LINE)
    figure.text(
        (corner[0] + 2.35) / wide,
        (corner[1] + 0.05) / tall,
        f"{result.what}; grey: may not be heard",
        size=7.5,
        color=QUIET,
        va="center",
    )


def _colours(two_sided: bool) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    stops = SIDES if two_sided else HEAT
    return LinearSegmentedColormap.from_list("rearview", list(stops)).with_extremes(bad=FORBIDDEN)


def _title(base: Look, row: int) -> str:
    return f"Layer {base.layer.index}, head {base.layer.heads[row]}"


def _about(base: Look) -> str:
    size = (
        f"{counted(base.stop - base.start, 'query', 'queries')} (rows) x {counted(base.k_len, 'key', 'keys')} (columns)"
    )
    return size if base.is_exact else f"{size}, bins of {base.width}"
