"""From shares to shades between 0 and 1: the scales of every drawing of a map, and the labels of their ends.

>>> import torch
>>> weights, uniform = torch.tensor([[1.0, 0.0], [0.75, 0.25]]), torch.tensor([[1.0, 0.0], [0.5, 0.5]])
>>> shaded_map(weights, uniform, weights[:, 0], "linear").shades    # NaN where the mask blocks a key
tensor([[1.0000,    nan],
        [0.7500, 0.2500]])

- `linear`: from 0 to the largest share of the map.
- `log`: four powers of ten, so that small shares next to a sink are visible.
- `without_first`: without the first key; each row is rescaled to sum to 1.
- `expected`: as a multiple of what uniform attention under the same mask would give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.observation.result.maps import ratio
from rearview.observation.views.sentences import share

SCALES, CHANGE_SCALES = ("log", "linear", "without_first", "expected"), ("linear", "log")
# The lower end of the log scale, and the multiple of uniform attention at either end of the `expected` scale.
FLOOR, MOST_TIMES = 1e-4, 32


@dataclass(frozen=True, eq=False)
class ShadedMap:
    """A map as it is coloured.

    Args:
        shades: [rows, columns] from 0 to 1; NaN where the mask blocks the key.
        is_two_sided: whether 0.5 is neutral and values to either side mean less and more.
        ends: what 0, 0.5 and 1 stand for.
        what: what the shades show.
    """

    shades: Tensor
    is_two_sided: bool
    ends: tuple[str, str, str]
    what: str


def check_scale(scale: object, known: tuple[str, ...]) -> None:
    """Raise `BadArgument` unless `scale` is one of the known ones."""
    if scale not in known:
        names = f"{', '.join(known[:-1])} or {known[-1]}"
        raise BadArgument("scale", expected=names, got=repr(scale))


def shaded_map(values: Tensor, uniform: Tensor, first: Tensor, scale: str) -> ShadedMap:
    """The map [rows, columns] of one head on one of `SCALES`.

    Args:
        values, uniform: the map, and that of uniform attention under the same mask.
        first: the share of the first key in each row.
    """
    check_scale(scale, SCALES)
    blocked = (uniform == 0) & (values == 0)
    if scale == "expected":
        shades = 0.5 + ratio(values, uniform).log() / math.log(MOST_TIMES) / 2
        ends = (f"1/{MOST_TIMES} or less", "as uniform", f"{MOST_TIMES} times")
        return ShadedMap(_hidden(shades, blocked), True, ends, "times what uniform attention would give")
    if scale == "log":
        ends = (f"under {100 * FLOOR:g} %", f"{100 * math.sqrt(FLOOR):g} %", "100 %")
        return ShadedMap(_hidden(_logarithm(values), blocked), False, ends, "share of a query's attention, log")
    if scale == "without_first":
        values = without_first(values, first)
    top = float(values.max()) or 1.0
    what = "share of a query's attention" + (", without the first key" if scale == "without_first" else "")
    return ShadedMap(_hidden(values / top, blocked), False, ("0", share(top / 2), share(top)), what)


def without_first(values: Tensor, first: Tensor) -> Tensor:
    """A map without the share of key 0; rows sum to 1 again, and rows that heard only key 0 are 0."""
    values, gone = values.clone(), first.unsqueeze(-1)
    values[:, :1] = (values[:, :1] - gone).clamp(min=0)
    left = (1 - gone).clamp(min=0)
    # What is left by rounding counts as nothing.
    return torch.where(left > 1e-6, values / left.clamp(min=1e-6), 0.0)


def shaded_change(values: Tensor, uniform: Tensor, scale: str) -> ShadedMap:
    """The change of the map of one head on one of `CHANGE_SCALES`; `uniform` is 0 where neither run may hear."""
    check_scale(scale, CHANGE_SCALES)
    top = float(values.abs().max()) or 1.0
    size = _logarithm(values.abs() / top) if scale == "log" else values.abs() / top
    shades = 0.5 + values.sign() * size / 2
    what = "change of the share" + (", log" if scale == "log" else "")
    ends = (share(-top), "no change", f"+{share(top)}")
    return ShadedMap(_hidden(shades, (uniform == 0) & (values == 0)), True, ends, what)


def _logarithm(values: Tensor) -> Tensor:
    return 1 + values.clamp(min=FLOOR).log() / math.log(1 / FLOOR)


def _hidden(shades: Tensor, blocked: Tensor) -> Tensor:
    return shades.clamp(0, 1).masked_fill(blocked, float("nan"))
