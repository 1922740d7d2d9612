"""Colours of a terminal: which it has, and text in them.

>>> painted("a", ink=(255, 0, 0), depth=0), painted("a", ink=(255, 0, 0), depth=256)
('a', '\\x1b[38;5;196ma\\x1b[0m')
"""

from __future__ import annotations

import os
from typing import IO

Colour = tuple[int, int, int]

MANY = 1 << 24
# From nothing to all, on a dark ground; and from less over as much to more.
HEAT: tuple[Colour, ...] = ((12, 17, 22), (16, 51, 71), (23, 96, 124), (43, 155, 184), (143, 214, 222), (253, 251, 232))
SIDES: tuple[Colour, ...] = ((233, 150, 70), (128, 76, 26), (17, 23, 29), (22, 88, 112), (120, 214, 232))
FORBIDDEN: Colour = (52, 60, 68)


def depth_of(file: IO[str] | None) -> int:
    """How many colours there are to write with: 0 in a pipe or where NO_COLOR is set, 256, or 2^24.

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
    """The text with the codes of its colours, none where there are none."""
    codes = ["1"] if bold else []
    codes += [f"{layer}8;{_code(colour, depth)}" for layer, colour in ((3, ink), (4, paper)) if colour is not None]
    return f"\x1b[{';'.join(codes)}m{text}\x1b[0m" if depth and codes else text


def _code(colour: Colour, depth: int) -> str:
    if depth >= MANY:
        return "2;" + ";".join(map(str, colour))
    red, green, blue = (round(5 * channel / 255) for channel in colour)
    return f"5;{16 + 36 * red + 6 * green + blue}"


def between(stops: tuple[Colour, ...], place: float) -> Colour:
    """The colour at a place from 0 to 1.

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
