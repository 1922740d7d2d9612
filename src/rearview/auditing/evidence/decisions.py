"""The decisions of a model: comparisons, roundings and choices, and how far each is from turning out otherwise.

>>> import torch
>>> from rearview.auditing.evidence.decisions import Decisions
>>> x = torch.full((1, 4), 0.5, requires_grad=True)
>>> with Decisions(x.detach()) as seen:
...     _ = torch.where(x.mean() > 2, x, -x)
>>> seen.found[0].name, float(seen.found[0].margin.detach())
('gt', -1.5)

A random input seldom turns a comparison with a mean, or holds one token of fifty thousand. The gradient of the margin
gives the direction in which to search. Integers have no gradient: the numbers that they are compared with are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rearview.auditing.user_code import current_line

COMPARISONS = ("gt", "ge", "lt", "le", "eq", "ne", "greater", "less", "maximum", "minimum", "isclose")
# These turn at zero.
AT_ZERO = ("sign", "relu", "sgn", "signbit", "heaviside", "bool", "step")
ROUNDINGS = ("round", "floor", "ceil", "trunc", "int", "long", "fix")
CHOICES = ("argmax", "argmin", "topk", "sort", "argsort", "max", "min", "amax", "amin", "kthvalue", "median")
READS = ("item", "tolist", "float", "numpy")
# More than this many decisions of one run are not kept.
MOST_DECISIONS = 64


@dataclass(frozen=True, eq=False)
class TurningPoint:
    """A decision, and the number that decides it."""

    name: str
    margin: Tensor
    """It turns out otherwise where this changes its sign; it has a gradient."""
    file: str
    line: int
    reads: bool = False
    """Whether Python read the number, so that it is not known where it turns."""


class Decisions(TorchFunctionMode):
    """Keeps the decisions of a run, and where the tokens `x` were looked up."""

    def __init__(self, x: Tensor):
        super().__init__()
        self.x = x
        self.found: list[TurningPoint] = []
        self.looked_up: list[tuple[Tensor, Tensor]] = []
        """The embedding of the tokens, cut from the graph, and the table."""
        self.numbers: set[int] = set()
        """The integers that integers were compared with."""

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name = getattr(func, "__name__", "").strip("_")
        if name == "embedding" and len(args) > 1:
            return self._looked_up(out, *args[:2]) if self._is_tokens(args[0], args[1]) else out
        if name == "getitem" and len(args) > 1 and isinstance(args[1], Tensor) and self._is_tokens(args[1], args[0]):
            return self._looked_up(out, args[1], args[0])
        if len(self.found) < MOST_DECISIONS and args and isinstance(args[0], Tensor):
            self._keep(name, args)
        return out

    def _is_tokens(self, one: Any, table: Any) -> bool:
        if not isinstance(one, Tensor) or one.is_floating_point() or one.numel() != self.x.numel():
            return False
        return (
            isinstance(table, Tensor) and table.is_floating_point() and torch.equal(one.reshape(self.x.shape), self.x)
        )

    def _looked_up(self, out: Tensor, tokens: Tensor, table: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = out.detach().requires_grad_()
            self.looked_up.append((leaf, table.detach()))
            # Not the leaf itself, which a model may not write to.
            return leaf * 1.0

    def _keep(self, name: str, args: Sequence[Any]) -> None:
        first, second = args[0], args[1] if len(args) > 1 else None
        if not first.is_floating_point():
            if name in COMPARISONS and isinstance(second, (int, Tensor)):
                self._compared(second)
            return
        with torch.enable_grad():
            margin = _margin(name, first, second)
        if margin is not None and margin.requires_grad and margin.numel():
            self.found.append(TurningPoint(name, margin, *current_line(), reads=name in READS))

    def _compared(self, number: int | Tensor) -> None:
        if isinstance(number, int):
            self.numbers.add(int(number))
        elif not number.is_floating_point() and number.numel() <= 64:
            self.numbers |= set(map(int, number.flatten().tolist()))


def _margin(name: str, first: Tensor, second: Any) -> Tensor | None:
    if name in COMPARISONS and isinstance(second, (int, float, Tensor)):
        return first - second
    if name in AT_ZERO or name in READS:
        return first
    if name in ROUNDINGS:
        # The nearest place at which another number comes out.
        return first - ((first.detach() - 0.5).round() + 0.5 if name == "round" else first.detach().round())
    if name in CHOICES and isinstance(second, (int, type(None))):
        axis = second if isinstance(second, int) and name != "topk" and -first.ndim <= second < first.ndim else -1
        size = first.shape[axis] if first.ndim else 1
        if size > 1:
            best = first.topk(2, axis, largest=name not in ("argmin", "min", "amin")).values
            return best.select(axis, 0) - best.select(axis, 1)
    return None
