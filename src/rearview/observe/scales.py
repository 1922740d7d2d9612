"""From shares to shades between 0 and 1: the scales of every drawing of a map, and the words beside them.

>>> import torch
>>> from rearview import MaskedSelfAttention
>>> from rearview.observe import observe
>>> from rearview.observe.looking import look_at
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.zeros(1, 2, 8))
>>> shaded(look_at(seen, seen.layers[0]), 0, "linear").shades    # what the mask forbids is NaN
tensor([[1.0000,    nan],
        [0.5000, 0.5000]])

- `linear`: from 0 to the largest share of the map.
- `log`: four powers of ten, so that what stands beside a sink is seen.
- `without_first`: the first key is left out, and rows are made whole again.
- `expected`: how many times what uniform attention under the same mask would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.observe.changing import Change
from rearview.observe.looking import Look
from rearview.observe.maps import ratio
from rearview.observe.sentences import share

SCALES, CHANGE_SCALES = ("log", "linear", "without_first", "expected"), ("linear", "log")
# The log scale ends here; and so many times is the end of the scale to both sides.
FLOOR, MOST_TIMES = 1e-4, 32


@dataclass(frozen=True, eq=False)
class Shaded:
    """A map as it is coloured.

    Args:
        shades: [rows, columns] from 0 to 1; NaN where the mask forbids.
        is_two_sided: 0.5 is the middle, and both sides mean something.
        ends: what 0, 0.5 and 1 stand for.
        what: what is shown.
    """

    shades: Tensor
    is_two_sided: bool
    ends: tuple[str, str, str]
    what: str


def check_scale(scale: object, known: tuple[str, ...]) -> None:
    if scale not in known:
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise BadArgument("scale", expected=names, came=repr(scale))


def shaded(look: Look | Change, row: int, scale: str, *, top: float | None = None) -> Shaded:
    """The map of the head in this row. `top`: the end of a linear scale, that of this map unless given."""
    if isinstance(look, Change):
        check_scale(scale, CHANGE_SCALES)
        return _changed(look, row, scale, top)
    check_scale(scale, SCALES)
    values, uniform = look.map[row], look.uniform[min(row, len(look.uniform) - 1)]
    forbidden = (uniform == 0) & (values == 0)
    if scale == "expected":
        shades = 0.5 + ratio(values, uniform).log() / math.log(MOST_TIMES) / 2
        ends = (f"1/{MOST_TIMES} or less", "as uniform", f"{MOST_TIMES} times")
        return Shaded(_hidden(shades, forbidden), True, ends, "times what uniform attention would give")
    if scale == "log":
        ends = (f"under {100 * FLOOR:g} %", f"{100 * math.sqrt(FLOOR):g} %", "100 %")
        return Shaded(_hidden(_logarithm(values), forbidden), False, ends, "share of a query's attention, log")
    if scale == "without_first":
        values = without_first(look, row)
    top = top or float(values.max()) or 1.0
    what = "share of a query's attention" + (", the first key left out" if scale == "without_first" else "")
    return Shaded(_hidden(values / top, forbidden), False, ("0", share(top / 2), share(top)), what)


def without_first(look: Look, row: int) -> Tensor:
    """The map with the share of key 0 taken away, and rows that sum to 1 again; rows that heard only it are 0."""
    values, gone = look.map[row].clone(), look.first[row].unsqueeze(-1)
    values[:, :1] = (values[:, :1] - gone).clamp(min=0)
    left = (1 - gone).clamp(min=0)
    # What is left after rounding is nothing.
    return torch.where(left > 1e-6, values / left.clamp(min=1e-6), 0.0)


def _changed(change: Change, row: int, scale: str, top: float | None) -> Shaded:
    values, uniform = change.map[row], change.uniform[min(row, len(change.uniform) - 1)]
    top = top or float(values.abs().max()) or 1.0
    size = _logarithm(values.abs() / top) if scale == "log" else values.abs() / top
    shades = 0.5 + values.sign() * size / 2
    what = "change of the share" + (", log" if scale == "log" else "")
    return Shaded(
        _hidden(shades, (uniform == 0) & (values == 0)), True, (share(-top), "no change", f"+{share(top)}"), what
    )


def _logarithm(values: Tensor) -> Tensor:
    return 1 + values.clamp(min=FLOOR).log() / math.log(1 / FLOOR)


def _hidden(shades: Tensor, forbidden: Tensor) -> Tensor:
    return shades.clamp(0, 1).masked_fill(forbidden, float("nan"))
