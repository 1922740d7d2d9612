"""The operators of the algebra: `a & b`, `a | b`, `~a`, and one mask per head.

>>> from rearview import causal, per_head, window
>>> per_head([causal(), causal() & window(2)]).to_bool(3)[0].int().tolist()
[[[1, 0, 0], [1, 1, 0], [1, 1, 1]], [[1, 0, 0], [1, 1, 0], [0, 1, 1]]]
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import reduce
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.constructors import expression
from rearview.masks.document_window import DocumentWindow
from rearview.masks.families import Full
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask, family
from rearview.masks.spans import Spans


@family()
class Wrapped(Mask):
    """A mask that reads one other mask in its own way: what `Not`, `Lagged`, `Shifted` and `Item` share."""

    part: Mask

    @property
    def batch(self) -> int | None:
        return self.part.batch

    @property
    def heads(self) -> int | None:
        return self.part.heads

    @property
    def has_ranges(self) -> bool:
        return self.part.has_ranges

    def _frame_of_part(self, frame: Frame) -> Frame:
        """The frame that `part` is asked for."""
        return frame

    def _check(self, frame: Frame) -> None:
        self.part._check(self._frame_of_part(frame))


@family()
class Joined(Mask):
    """Several masks in one: what `And`, `Or` and `PerHead` share."""

    is_arithmetic = True
    parts: tuple[Mask, ...]
    # Read at every call of attend, so worked out once.
    _batch: int | None = field(init=False)
    _heads: int | None = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_batch", _one_size([part.batch for part in self.parts], "batch size"))
        object.__setattr__(self, "_heads", self._joined_heads())

    def _joined_heads(self) -> int | None:
        return _one_size([part.heads for part in self.parts], "number of heads")

    @property
    def batch(self) -> int | None:
        return self._batch

    @property
    def heads(self) -> int | None:
        return self._heads

    @property
    def has_ranges(self) -> bool:
        return all([part.has_ranges for part in self.parts])

    def _flatten(self) -> tuple[object, ...]:
        return self.parts

    @classmethod
    def _unflatten(cls, values: Sequence[Any]) -> Self:
        return cls(tuple(values))

    def _check(self, frame: Frame) -> None:
        for part in self.parts:
            part._check(frame)


@family()
class Operation(Joined):
    """`a & b & ...` or `a | b | ...`."""

    operator: ClassVar[Callable[[Any, Any], Any]]
    sign: ClassVar[str]

    @classmethod
    def of(cls, *masks: Mask) -> Self:
        """The masks joined; `(a & b) & c` becomes `a & b & c`."""
        parts: list[Mask] = []
        for mask in masks:
            parts += mask.parts if isinstance(mask, cls) else (mask,)
        return cls(tuple(parts))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return reduce(type(self).operator, (part.visible(batch, head, query, key) for part in self.parts))

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return reduce(type(self).operator, (part._spans(frame, device) for part in self.parts))

    def _simplified_parts(self, frame: Frame) -> list[Mask]:
        simple: list[Mask] = []
        has_causal = False
        for part in self.parts:
            part = part._simplify(frame)
            # A window as wide as the frame is causal there, and often occurs together with causal().
            if not (part.is_causal and has_causal):
                simple.append(part)
            has_causal = has_causal or part.is_causal
        return simple

    def _rebuilt(self, parts: list[Mask]) -> Mask:
        if len(parts) == 1:
            return parts[0]
        same = len(parts) == len(self.parts) and all([one is other for one, other in zip(parts, self.parts)])  # noqa: B905
        return self if same else self.of(*parts)

    def __repr__(self) -> str:
        return f" {self.sign} ".join(_inside(part) for part in self.parts)


@family("and")
class And(Operation):
    operator = operator.and_
    sign = "&"

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        start, end = 0, k_len
        for part in self.parts:
            heard = part._one_range(position, k_len)
            if heard is None:
                return None
            start, end = max(start, heard[0]), min(end, heard[1])
        return start, end

    def _document_window(self) -> DocumentWindow | None:
        joined: DocumentWindow | None = DocumentWindow()
        for part in self.parts:
            own = part._document_window()
            joined = None if own is None or joined is None else joined & own
        return joined

    def _simplify(self, frame: Frame) -> Mask:
        kept = [part for part in self._simplified_parts(frame) if not part.is_full]
        return self._rebuilt(kept) if kept else Full()


@family("or")
class Or(Operation):
    operator = operator.or_
    sign = "|"

    def _simplify(self, frame: Frame) -> Mask:
        parts = self._simplified_parts(frame)
        return Full() if any([part.is_full for part in parts]) else self._rebuilt(parts)


@family("not")
class Not(Wrapped):
    is_arithmetic = True

    @classmethod
    def of(cls, mask: Mask) -> Mask:
        return mask.part if isinstance(mask, Not) else cls(mask)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return ~self.part.visible(batch, head, query, key)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return ~self.part._spans(frame, device)

    def __repr__(self) -> str:
        return f"~{_inside(self.part)}"


@family("per_head")
class PerHead(Joined):
    def _joined_heads(self) -> int | None:
        return len(self.parts)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        answers = (part.visible(batch, head, query, key) & (head == h) for h, part in enumerate(self.parts))
        return reduce(operator.or_, answers)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        each = [part._spans(frame, device) for part in self.parts]
        return Spans.stacked(each, dim=1, q_len=frame.q_len, k_len=frame.k_len)

    def _simplify(self, frame: Frame) -> Mask:
        parts = tuple([part._simplify(frame) for part in self.parts])
        return Full() if all([part.is_full for part in parts]) else PerHead(parts)

    def __repr__(self) -> str:
        return f"per_head([{', '.join(map(repr, self.parts))}])"


@expression("per_head([causal(), window(2)])")
def per_head(masks: Sequence[Mask]) -> Mask:
    """One mask for each query head, in order.

    >>> from rearview import causal, window
    >>> per_head([causal(), window(2)])
    per_head([causal(), window(2)])
    """
    try:
        parts: list[Any] = list(masks) if isinstance(masks, Iterable) else [masks]
    except (TypeError, RuntimeError):
        # Tensors and arrays say that they can be iterated over, and not all can.
        parts = [masks]
    if not parts or not all(isinstance(part, Mask) for part in parts):
        raise BadArgument("per_head(masks)", expected="a list of masks, one per head", got=repr(masks))
    if nested := [part for part in parts if part.heads is not None]:
        raise BadArgument("per_head(masks)", expected="masks that are the same for every head", got=repr(nested[0]))
    return PerHead(tuple(parts))


def _inside(part: Mask) -> str:
    # `&` binds tighter than `|` in Python, but few readers are sure of it: parentheses always.
    return f"({part!r})" if isinstance(part, Operation) else repr(part)


def _one_size(sizes: list[int | None], what: str) -> int | None:
    found: int | None = None
    for size in sizes:
        if size is None or size == found:
            continue
        if found is not None:
            both = " and ".join(map(str, sorted({known for known in sizes if known is not None})))
            raise BadArgument("mask", expected=f"masks for one {what}", got=both)
        found = size
    return found
