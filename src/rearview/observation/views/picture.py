"""A picture of an observation for a paper: one head, the heads of a layer, or all of them; .png, .svg or .pdf.

    >>> seen.picture("head.pdf", layer=2, head=1, scale="expected")    # doctest: +SKIP

The same observation gives the same bytes. Maps are images inside the file; labels and numbers stay text in an SVG.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from rearview.drawing.cells import counted, cut
from rearview.drawing.figure import INK, QUIET, rendered
from rearview.drawing.palette import CHANGE, HEAT, LIGHT
from rearview.errors import BadArgument
from rearview.files import target_of, write_whole
from rearview.observation.views.layer_change import MapView
from rearview.observation.views.layer_view import LayerView, short_name
from rearview.observation.views.scales import ShadedMap
from rearview.observation.views.sentences import share

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Colormap
    from matplotlib.figure import Figure

    from rearview.observation.result.display import Display
    from rearview.observation.result.layer import Layer

ENDINGS = (".png", ".svg", ".pdf")
FORBIDDEN, LINE = LIGHT["blocked"], LIGHT["hatch"]
# The largest number of rows and columns that are labelled with their tokens.
MOST_LABELLED = 40
LONGEST_WORD = 12
# In the picture of all heads: pixels per side of a map, and pixels between two maps.
SMALL, BETWEEN = 40, 4
# In the picture of a layer: the most maps per row.
ACROSS = 4


def save(
    display: Display,
    path: str | os.PathLike[str],
    layer: int | str | Layer | None,
    head: int | None,
    *,
    scale: str,
    item: int,
) -> None:
    """Write the picture of one head, of the heads of a layer, or of all heads; see `Observation.picture`."""
    target = target_of(path, ENDINGS)
    display._check_scale(scale)
    if head is not None and layer is None:
        raise BadArgument("head", expected="a layer as well", got=f"head {head} alone")
    views = display._views(layer, item=item)

    # A head that was not watched is refused before anything is drawn.
    row = None if head is None else views[0].base.layer.row_of(head)

    def draw() -> Figure:
        if layer is None:
            return _everything(display, views, scale)
        return _layer(views[0], scale) if row is None else _one(views[0], row, scale)

    write_whole(target, rendered(draw, target.suffix.lower(), needed_for="A picture of attention"))


def _one(view: MapView, row: int, scale: str) -> Figure:
    """A large map with its tokens and, below it, the attention that each key received."""
    from matplotlib.figure import Figure

    base, result = view.base, view.shaded(row, scale)
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
    _received(figure, view, row, (left / wide, 0.95 / tall, side / wide, 0.5 / tall))
    _bar(figure, result, (left, 0.42), (wide, tall))
    return figure


def _draw(canvas: Axes, base: LayerView, result: ShadedMap) -> None:
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


def _ticks(canvas: Axes, base: LayerView, worded: bool) -> None:
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


def _received(figure: Figure, view: MapView, row: int, area: tuple[float, float, float, float]) -> None:
    canvas = figure.add_axes(area, gid="received")
    base = view.base
    keys = torch.arange(base.k_len + 1).tolist()
    canvas.stairs(view.received[row].tolist(), keys, fill=True, color=LIGHT["more-2"])
    if not view.is_change:
        canvas.stairs(base.expected_of(row).tolist(), keys, color=LIGHT["orange"], linewidth=1.0)
    canvas.set_xlim(0, base.k_len)
    canvas.tick_params(length=2, labelsize=7, colors=QUIET, bottom=False, labelbottom=False)
    for name, spine in canvas.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(LINE)
    received = "attention received by each key (line: uniform attention)"
    what = "change of the attention received by each key" if view.is_change else received
    canvas.set_xlabel(what, size=8, color=QUIET)


def _layer(view: MapView, scale: str) -> Figure:
    """Every head of a layer, with the share of the first key."""
    from matplotlib.figure import Figure

    base = view.base
    heads = base.layer.heads
    across = min(ACROSS, len(heads))
    down = -(-len(heads) // across)
    side, gap, above = 1.8, 0.35, 0.85
    # The text must fit, however few heads there are.
    wide, tall = max(4.6, 0.4 + across * (side + gap)), above + down * (side + gap + 0.1) + 0.75
    figure = Figure(figsize=(wide, tall))
    figure.text(0.2 / wide, 1 - 0.3 / tall, f"Layer {base.layer.index}", size=12, weight="bold", color=INK, va="center")
    figure.text(0.2 / wide, 1 - 0.54 / tall, _about(base), size=8.5, color=QUIET, va="center", parse_math=False)
    result = None
    for row, head in enumerate(heads):
        x, y = 0.3 + (row % across) * (side + gap), above + 0.25 + (row // across) * (side + gap + 0.1)
        canvas = figure.add_axes((x / wide, 1 - (y + side) / tall, side / wide, side / tall), gid=f"head-{head}")
        result = view.shaded(row, scale)
        _draw(canvas, base, result)
        canvas.set_xticks([])
        canvas.set_yticks([])
        canvas.set_title(_caption(view, row, head), size=8, color=INK, pad=3)
    assert result is not None
    _bar(figure, result, (0.3, 0.42), (wide, tall), of_each=_differs(view, scale))
    return figure


def _caption(view: MapView, row: int, head: int) -> str:
    found = view.figures(row)
    what = f"{share(found['moved'])} moved" if view.is_change else f"{share(found['first_1'])} on the first key"
    return f"head {head}: {what}"


def _everything(display: Display, views: Sequence[MapView], scale: str) -> Figure:
    """All heads of all layers, small, as one image."""
    from matplotlib.figure import Figure

    most = max(len(view.base.layer.heads) for view in views)
    step = SMALL + BETWEEN
    image = torch.full((len(views) * step, most * step, 4), 0.0)
    result = None
    for n, view in enumerate(views):
        for row in range(len(view.base.layer.heads)):
            small = view.coarser(SMALL)
            result = small.shaded(row, scale)
            pixels = _pixels(result, _colours(result.is_two_sided))
            image[n * step : n * step + SMALL, row * step : row * step + SMALL] = pixels
    assert result is not None
    side = max(0.28, min(0.7, 9.0 / most))
    wide, tall = max(4.6, 0.9 + most * side), 1.15 + len(views) * side + 0.8
    figure = Figure(figsize=(wide, tall))
    heads = sum(len(view.base.layer.heads) for view in views)
    about = f"{counted(len(views), 'layer', 'layers')} (rows), {counted(heads, 'head', 'heads')} in all"
    figure.text(
        0.2 / wide, 1 - 0.3 / tall, display.headline, size=12, weight="bold", color=INK, va="center", parse_math=False
    )
    figure.text(0.2 / wide, 1 - 0.54 / tall, about, size=8.5, color=QUIET, va="center")
    area = (0.7 / wide, 0.8 / tall, most * side / wide, len(views) * side / tall)
    canvas = figure.add_axes(area, gid="heads")
    canvas.imshow(image.numpy(), aspect="auto", interpolation="nearest", extent=(0, most, len(views), 0))
    several = len({view.base.layer.kind for view in views}) > 1
    names = [short_name(view.base.layer, several_kinds=several) for view in views]
    longest = max((view.base.layer for view in views), key=lambda layer: len(layer.heads))
    canvas.set_xticks([n + 0.45 for n in range(most)], [str(head) for head in longest.heads])
    canvas.set_yticks([n + 0.45 for n in range(len(views))], names)
    canvas.tick_params(length=0, labelsize=7, colors=QUIET)
    canvas.xaxis.tick_top()
    for spine in canvas.spines.values():
        spine.set_visible(False)
    _bar(figure, result, (0.7, 0.42), (wide, tall), of_each=_differs(views[0], scale))
    return figure


def _pixels(result: ShadedMap, colours: Colormap) -> Tensor:
    shades = F.interpolate(result.shades[None, None], size=(SMALL, SMALL), mode="nearest")[0, 0]
    return torch.from_numpy(colours(shades.numpy())).float()


def _differs(view: MapView, scale: str) -> bool:
    """Whether the ends of the scale differ from map to map."""
    return view.is_change or scale in ("linear", "without_first")


def _bar(
    figure: Figure, result: ShadedMap, corner: tuple[float, float], size: tuple[float, float], *, of_each: bool = False
) -> None:
    """The legend: the colour scale with the meaning of its ends."""
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


def _colours(two_sided: bool) -> Colormap:
    from matplotlib.colors import LinearSegmentedColormap

    stops = [LIGHT[name] for name in (CHANGE if two_sided else HEAT)]
    return LinearSegmentedColormap.from_list("rearview", stops).with_extremes(bad=FORBIDDEN)


def _title(base: LayerView, row: int) -> str:
    return f"Layer {base.layer.index}, head {base.layer.heads[row]}"


def _about(base: LayerView) -> str:
    size = (
        f"{counted(base.stop - base.start, 'query', 'queries')} (rows) x {counted(base.k_len, 'key', 'keys')} (columns)"
    )
    return size if base.is_exact else f"{size}, bins of {base.width}"
