"""The operators of the algebra: `a & b`, `a | b`, `~a`, and one mask a head.

>>> from rearview import causal, per_head, window
>>> per_head([causal(), causal() & window(2)]).to_bool(3)[0].int().tolist()
[[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 1, 1]]]
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from functools import reduce

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.families import Causal, Full
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans


class Joined(Mask):
    """Several masks in one: what `And`, `Or` and `PerHead` share."""

    __slots__ = ("parts",)
    parts: tuple[Mask, ...]

    def __init__(self, parts: Sequence[Mask]):
        object.__setattr__(self, "parts", tuple(parts))
        _one_size((part.batch for part in parts), "batch")

    @property
    def batch(self) -> int | None:
        return _one_size((part.batch for part in self.parts), "batch")

    @property
    def heads(self) -> int | None:
        return _one_size((part.heads for part in self.parts), "heads")

    @property
    def has_ranges(self) -> bool:
        return all(part.has_ranges for part in self.parts)

    def to(self, device: torch.device | str) -> Mask:
        return type(self)([part.to(device) for part in self.parts])

    def _check(self, frame: Frame) -> None:
        for part in self.parts:
            part._check(frame)


class And(Joined):
    __slots__ = ()

    @classmethod
    def of(cls, *masks: Mask) -> And:
        joined = cls([part for mask in masks for part in (mask.parts if isinstance(mask, And) else (mask,))])
        _one_size((part.heads for part in joined.parts), "heads")
        return joined

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return reduce(operator.and_, (part.visible(batch, head, query, key) for part in self.parts))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return reduce(operator.and_, (part._spans(frame, device) for part in self.parts))

    def _simplify(self, frame: Frame) -> Mask:
        kept = [part for part in _simplified(self.parts, frame) if not isinstance(part, Full)]
        return Full() if not kept else kept[0] if len(kept) == 1 else And.of(*kept)

    def __repr__(self) -> str:
        return " & ".join(_inside(part) for part in self.parts)


class Or(Joined):
    __slots__ = ()

    @classmethod
    def of(cls, *masks: Mask) -> Or:
        joined = cls([part for mask in masks for part in (mask.parts if isinstance(mask, Or) else (mask,))])
        _one_size((part.heads for part in joined.parts), "heads")
        return joined

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return reduce(operator.or_, (part.visible(batch, head, query, key) for part in self.parts))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return reduce(operator.or_, (part._spans(frame, device) for part in self.parts))

    def _simplify(self, frame: Frame) -> Mask:
        parts = _simplified(self.parts, frame)
        if any(isinstance(part, Full) for part in parts):
            return Full()
        return parts[0] if len(parts) == 1 else Or.of(*parts)

    def __repr__(self) -> str:
        return " | ".join(_inside(part) for part in self.parts)


class Not(Mask):
    __slots__ = ("part",)
    part: Mask

    def __init__(self, part: Mask):
        object.__setattr__(self, "part", part)

    @classmethod
    def of(cls, mask: Mask) -> Mask:
        return mask.part if isinstance(mask, Not) else cls(mask)

    @property
    def batch(self) -> int | None:
        return self.part.batch

    @property
    def heads(self) -> int | None:
        return self.part.heads

    @property
    def has_ranges(self) -> bool:
        return self.part.has_ranges

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.part.visible(batch, head, query, key)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return ~self.part._spans(frame, device)

    def to(self, device: torch.device | str) -> Mask:
        return Not(self.part.to(device))

    def _check(self, frame: Frame) -> None:
        self.part._check(frame)

    def __repr__(self) -> str:
        return f"~{_inside(self.part)}"


class PerHead(Joined):
    __slots__ = ()

    @property
    def heads(self) -> int | None:
        return len(self.parts)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        answers = (part.visible(batch, head, query, key) & (head == h) for h, part in enumerate(self.parts))
        return reduce(operator.or_, answers)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        each = [part._spans(frame, device) for part in self.parts]
        items, slots = max(spans.batch for spans in each), max(spans.most_ranges for spans in each)
        rows = 1 if all(spans.starts.shape[2] == 1 for spans in each) else frame.q_len

        def stack(edges: Iterable[Tensor]) -> Tensor:
            # Missing range slots are empty ranges at the end, as in any canonical row.
            filled = (torch.nn.functional.pad(e, (0, slots - e.shape[-1]), value=frame.k_len) for e in edges)
            return torch.cat([edge.expand(items, 1, rows, slots) for edge in filled], dim=1)

        starts, ends = stack(spans.starts for spans in each), stack(spans.ends for spans in each)
        return Spans(starts, ends, q_len=frame.q_len, k_len=frame.k_len)

    def _simplify(self, frame: Frame) -> Mask:
        parts = [part._simplify(frame) for part in self.parts]
        return Full() if all(isinstance(part, Full) for part in parts) else PerHead(parts)

    def __repr__(self) -> str:
        return f"per_head([{', '.join(map(repr, self.parts))}])"


def per_head(masks: Sequence[Mask]) -> Mask:
    """One mask for each query head, in order.

    >>> from rearview import causal, window
    >>> per_head([causal(), window(2)])
    per_head([causal(), window(2)])
    """
    parts = list(masks) if isinstance(masks, Iterable) else [masks]
    if not parts or not all(isinstance(part, Mask) for part in parts):
        raise BadArgument("per_head(masks)", expected="a list of masks, one a head", came=repr(masks))
    if nested := [part for part in parts if part.heads is not None]:
        raise BadArgument("per_head(masks)", expected="masks that are the same for every head", came=repr(nested[0]))
    return PerHead(parts)


def _simplified(parts: Iterable[Mask], frame: Frame) -> list[Mask]:
    simple: list[Mask] = []
    for part in (part._simplify(frame) for part in parts):
        # A window as wide as the frame is causal there, and often stands beside the real one.
        repeats = isinstance(part, Causal) and any(isinstance(other, Causal) for other in simple)
        if not repeats:
            simple.append(part)
    return simple


def _inside(part: Mask) -> str:
    # `&` binds tighter than `|` in Python, but few readers are sure of it: parentheses always.
    return f"({part!r})" if isinstance(part, (And, Or)) else repr(part)


def _one_size(sizes: Iterable[int | None], axis: str) -> int | None:
    known = sorted({size for size in sizes if size is not None})
    if len(known) > 1:
        raise BadArgument("mask", expected=f"masks for one {axis} size", came=" and ".join(map(str, known)))
    return known[0] if known else None
