"""Colours of a terminal: how many it has, and text in colour.

>>> painted("a", ink=(255, 0, 0), depth=0), painted("a", ink=(255, 0, 0), depth=256)
('a', '\\x1b[38;5;196ma\\x1b[0m')
"""

from __future__ import annotations

import os
from typing import IO

from rearview.drawing import palette
from rearview.drawing.palette import DARK, Colour, rgb

MANY = 1 << 24
HEAT: tuple[Colour, ...] = tuple(rgb(DARK[name]) for name in palette.HEAT)
CHANGE: tuple[Colour, ...] = tuple(rgb(DARK[name]) for name in palette.CHANGE)
FORBIDDEN, QUIET = rgb(DARK["hatch"]), rgb(DARK["quiet"])


def depth_of(file: IO[str] | None) -> int:
    """The number of colours of a file: 0 for a pipe or if NO_COLOR is set, otherwise 256 or 2^24.

    >>> import io
    >>> depth_of(io.StringIO())
    0
    """
    forced = bool(os.environ.get("FORCE_COLOR"))
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return 0
    if not forced and (file is None or not file.isatty()):
        return 0
    return MANY if os.environ.get("COLORTERM", "").lower() in ("truecolor", "24bit") else 256


def painted(
    text: str, *, ink: Colour | None = None, paper: Colour | None = None, bold: bool = False, depth: int
) -> str:
    """The text with the escape codes of its colours, or without any if `depth` is 0."""
    codes = ["1"] if bold else []
    codes += [f"{layer}8;{_code(colour, depth)}" for layer, colour in ((3, ink), (4, paper)) if colour is not None]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if depth and codes else text


def _code(colour: Colour, depth: int) -> str:
    if depth >= MANY:
        return "2;" + ";".join(map(str, colour))
    red, green, blue = (round(5 * channel / 255) for channel in colour)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def between(stops: tuple[Colour, ...], place: float) -> Colour:
    """The colour between the stops at a place from 0 to 1.

    >>> between(HEAT, 0.0), between(HEAT, 1.0)
    ((12, 17, 22), (253, 251, 232))
    """
    where = min(max(place, 0.0), 1.0) * (len(stops) - 1)
    low = min(int(where), len(stops) - 2)
    red, green, blue = (round(a + (where - low) * (b - a)) for a, b in zip(stops[low], stops[low + 1], strict=True))
    return red, green, blue


def readable_on(paper: Colour) -> Colour:
    """Black or white, whichever can be read."""
    red, green, blue = paper
    return (0, 0, 0) if 0.3 * red + 0.59 * green + 0.11 * blue > 120 else (255, 255, 255)
