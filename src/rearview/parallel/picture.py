"""A layout as a picture: what each rank holds and receives, how much it computes, what it is sent."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

from rearview.drawing.cells import cut
from rearview.drawing.figure import INK, PAPER, QUIET, rendered
from rearview.drawing.palette import LIGHT
from rearview.errors import BadArgument
from rearview.files import target_of, write_whole
from rearview.parallel.report import header

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Canvas
    from matplotlib.figure import Figure

    from rearview.parallel.layout import Layout

ENDINGS = (".svg", ".png", ".pdf")
# More lanes would be thinner than their labels.
MOST_RANKS = 64
HELD, RECEIVED, LANE = LIGHT["teal"], LIGHT["heat-2"], LIGHT["blocked"]
WIDE, LEFT, RIGHT, TOP, BOTTOM = 10.0, 0.75, 0.3, 1.15, 0.75
LANE_WIDTH, BAR_WIDTH, GAP = 5.3, 1.45, 0.35


def save_picture(layout: Layout, path: str | os.PathLike[str]) -> None:
    """Write the picture of a layout; see `Layout.save_picture`."""
    target = target_of(path, ENDINGS)
    if layout.ranks > MOST_RANKS:
        advice = "print(layout) has figures for any number of ranks."
        raise BadArgument("layout", expected=f"at most {MOST_RANKS} ranks", got=layout.ranks, advice=advice)
    write_whole(target, rendered(lambda: _figure(layout), target.suffix.lower(), needed_for="A picture of a layout"))


def _figure(layout: Layout) -> Figure:
    from matplotlib.figure import Figure

    lane = 0.34 if layout.ranks <= 16 else 0.2
    high = TOP + lane * layout.ranks + BOTTOM
    figure = Figure(figsize=(WIDE, high))

    def canvas(left: float, width: float, title: str) -> Canvas:
        made = figure.add_axes((left / WIDE, BOTTOM / high, width / WIDE, lane * layout.ranks / high))
        made.set_ylim(layout.ranks, 0)
        made.set_yticks([])
        made.tick_params(length=0, labelsize=8, labelcolor=QUIET)
        for side in made.spines.values():
            side.set_visible(False)
        made.set_title(title, size=9.5, color=INK, loc="left")
        return made

    _lanes(canvas(LEFT, LANE_WIDTH, "positions"), layout)
    mean = sum(layout.area) / layout.ranks
    shares = [area / max(1.0, mean) for area in layout.area]
    areas = canvas(LEFT + LANE_WIDTH + GAP, BAR_WIDTH, "area, of the mean")
    _bars(areas, shares, [f"{share:.2f}" for share in shares], HELD)
    areas.axvline(1.0, color=LIGHT["glow"], linewidth=1.4)
    keys = canvas(LEFT + LANE_WIDTH + 2 * GAP + BAR_WIDTH, BAR_WIDTH, "keys received")
    _bars(keys, list(layout.keys_received), [f"{count:,}" for count in layout.keys_received], RECEIVED)
    _words(figure, layout, high)
    return figure


def _lanes(canvas: Canvas, layout: Layout) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle
    from matplotlib.ticker import FuncFormatter

    canvas.set_xlim(0, layout.length)
    canvas.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    canvas.locator_params(axis="x", nbins=5, integer=True)
    for rank in range(layout.ranks):
        canvas.text(-0.012 * layout.length, rank + 0.5, str(rank), ha="right", va="center", size=8.5, color=INK)
        canvas.add_patch(Rectangle((0, rank + 0.14), layout.length, 0.72, facecolor=LANE, linewidth=0))
    pieces = layout.pieces
    held = zip(pieces.owners.tolist(), pieces.starts.tolist(), pieces.ends.tolist(), strict=True)
    received = {(move.receiver, move.start, move.end) for move in layout.transfers}
    for runs, colour, name in ((sorted(received), RECEIVED, "received"), (held, HELD, "held")):
        patches = [Rectangle((start, rank + 0.14), end - start, 0.72) for rank, start, end in runs]
        canvas.add_collection(PatchCollection(patches, facecolor=colour, linewidth=0, gid=name))


def _bars(canvas: Canvas, values: list[float] | list[int], words: list[str], colour: str) -> None:
    longest = max(values)
    canvas.set_xticks([])
    # Room for the words after the longest bar.
    canvas.set_xlim(0, max(1e-9, float(longest)) * 1.6)
    canvas.barh([rank + 0.5 for rank in range(len(values))], values, height=0.72, color=colour)
    for rank, word in enumerate(words):
        canvas.text(1.07 * longest, rank + 0.5, word, va="center", size=8, color=QUIET)


def _words(figure: Figure, layout: Layout, high: float) -> None:
    from matplotlib.patches import Rectangle

    expression, _, facts = header(layout).partition("  ·  ")
    line = textwrap.shorten(cut(expression, 88), 90, placeholder="…")
    figure.text(LEFT / WIDE, 1 - 0.3 / high, line, size=12.5, color=INK, family="monospace", weight="bold",
                parse_math=False, va="center")  # fmt: skip
    received, gathered = sum(layout.keys_received), sum(layout.keys_gathered)
    fewer = f"{gathered / received:.1f} times fewer keys than an all-gather" if received else "no keys travel"
    facts = f"{facts}  ·  the slowest rank has {layout.balance:.3f} of the mean  ·  {fewer}"
    figure.text(LEFT / WIDE, 1 - 0.58 / high, facts, size=9.5, color=QUIET, va="center")
    x = LEFT
    for colour, word in ((HELD, "held"), (RECEIVED, "keys received"), (LANE, "neither")):
        figure.add_artist(Rectangle((x / WIDE, 0.2 / high), 0.15 / WIDE, 0.15 / high, color=colour,
                                    transform=figure.transFigure))  # fmt: skip
        figure.text((x + 0.22) / WIDE, 0.275 / high, word, size=8.5, color=QUIET, va="center")
        x += 0.45 + 0.085 * len(word)
    figure.patch.set_facecolor(PAPER)
