"""Mask: may the query at position i hear the key at position j? True = may be heard, everywhere.

    >>> from rearview import causal, window
    >>> mask = causal() & window(3)
    >>> mask
    causal() & window(3)
    >>> mask.to_bool(4).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]

This file holds what every mask can do. The families are in `families.py` and `unstructured.py`, the operators
in `combine.py`; what a mask looks like to other libraries is in `exchange/`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

import torch
from torch import Tensor

from rearview.errors import BadArgument, NoRangeForm
from rearview.masks.frame import Frame
from rearview.masks.spans import Spans

if TYPE_CHECKING:
    from rearview.masks.compare import MaskDiff
    from rearview.masks.show import Drawing
    from rearview.masks.tiles import Tiles
    from rearview.masks.warn import MaskWarning

# A decoding loop asks for one new frame a step; a training loop for the same few. Either is served by a handful.
REMEMBERED_FRAMES = 8


class Mask:
    """A small immutable value. Compose with `&`, `|` and `~`; ask it with the methods below."""

    __slots__ = ("_remembered",)

    # What a family answers.

    @property
    def batch(self) -> int | None:
        """The batch size that the mask is made for, or None when it is the same for every item."""
        return None

    @property
    def heads(self) -> int | None:
        """The number of query heads that the mask is made for, or None when it is the same for every head."""
        return None

    @property
    def has_ranges(self) -> bool:
        """Has this mask an exact form as a few ranges a row?"""
        return True

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The rule itself on broadcastable index tensors: bool, of any shape that broadcasts to theirs.

        `query` and `key` are positions.
        """
        raise TypeError(f"{type(self).__name__} must define visible")

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        raise NoRangeForm(
            f"{self!r} has no range form",
            ["the keys that a query hears are not a few ranges"],
            advice="Use to_bool(q_len, k_len) or tiles(q_len, k_len), which every mask has.",
        )

    def _check(self, frame: Frame) -> None:
        """Raise when the mask's own data does not cover the frame."""

    def _simplify(self, frame: Frame) -> Mask:
        """An equal mask in this frame, without the parts that change nothing there. Plain arithmetic, no tensors."""
        return self

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its own tensors, if it has any, on `device`. Saves a copy at every use there.

        >>> from rearview import documents
        >>> documents([0, 0, 1]).to("cpu")
        documents([0, 0, 1])
        """
        return self

    # The algebra. Imports stand inside because the operators are masks themselves.

    def __and__(self, other: Mask) -> Mask:
        from rearview.masks.combine import And

        return And.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        from rearview.masks.combine import Or

        return Or.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        from rearview.masks.combine import Not

        return Not.of(self)

    def __bool__(self) -> NoReturn:
        raise BadArgument(
            "mask",
            expected="`&`, `|` and `~` between masks",
            came="`and`, `or`, `not` or `if`, which ask a mask for one truth value",
            advice="Write causal() & window(3), not causal() and window(3).",
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a mask is immutable; make a new one instead of setting {name!r}")

    # A value that never changes is its own copy. (A layer that holds a mask is deep-copied often: EMA, clones.)
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __getstate__(self) -> dict[str, Any]:
        slots = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        return {name: getattr(self, name) for name in slots if name != "_remembered"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    # Lowering.

    def spans(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        q_start: int | None = None,
        device: torch.device | str | None = None,
    ) -> Spans:
        """The mask as ranges, exact, in memory proportional to the length.

        >>> from rearview import causal
        >>> causal().spans(1, 4).rows()
        [[(0, 4)]]
        """
        return self.spans_in(Frame.of(q_len, k_len, q_start), torch.device(device or "cpu"))

    def spans_in(self, frame: Frame, device: torch.device) -> Spans:
        """`spans` for a frame that is already made; remembers the last few answers."""
        self._check(frame)
        # A traced tensor must not outlive its trace.
        if torch.compiler.is_compiling():
            return self._spans(frame, device)
        try:
            remembered: dict[tuple[Frame, torch.device], Spans] = self._remembered
        except AttributeError:
            remembered = {}
            object.__setattr__(self, "_remembered", remembered)
        found = remembered.pop((frame, device), None) or self._spans(frame, device)
        remembered[frame, device] = found
        while len(remembered) > REMEMBERED_FRAMES:
            del remembered[next(iter(remembered))]
        return found

    def to_bool(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        q_start: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The dense form, True = may be heard: [q_len, k_len], or [batch, head, q_len, k_len] when they matter.

        >>> from rearview import causal
        >>> causal().to_bool(2, 3).tolist()
        [[True, True, False], [True, True, True]]
        """
        visible = self.visible_in(Frame.of(q_len, k_len, q_start), torch.device(device or "cpu"))
        return visible[0, 0] if self.batch is None and self.heads is None else visible

    def visible_in(self, frame: Frame, device: torch.device, rows: Tensor | None = None) -> Tensor:
        """Bool [batch or 1, heads or 1, rows, k_len] for a frame; `rows` are indices of queries, all unless given."""
        self._check(frame)
        queries = torch.arange(frame.q_len, device=device) if rows is None else rows.to(device)
        batch = torch.arange(self.batch or 1, device=device).view(-1, 1, 1, 1)
        head = torch.arange(self.heads or 1, device=device).view(1, -1, 1, 1)
        query = (queries + frame.q_start).view(1, 1, -1, 1)
        key = torch.arange(frame.k_len, device=device).view(1, 1, 1, -1)
        visible = self.visible(batch, head, query, key)
        return visible.expand(len(batch), head.shape[1], len(queries), frame.k_len)

    def to_additive(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        blocked: float = float("-inf"),
        q_start: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """The mask M of the formula softmax(S + M): 0 where a key may be heard, `blocked` elsewhere.

        >>> from rearview import causal
        >>> causal().to_additive(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        from rearview.masks.exchange.tensors import to_additive

        return to_additive(self.to_bool(q_len, k_len, q_start=q_start, device=device), dtype=dtype, blocked=blocked)

    def tiles(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        block: int | tuple[int, int] = 128,
        q_start: int | None = None,
        device: torch.device | str | None = None,
    ) -> Tiles:
        """Which blocks of queries x keys are full, partial or skipped.

        >>> from rearview import causal
        >>> causal().tiles(4, block=2).kind[0, 0].tolist()    # 0 skipped, 1 partial, 2 full
        [[1, 0], [2, 1]]
        """
        from rearview.masks.tiles import Tiles

        return Tiles.of(self, Frame.of(q_len, k_len, q_start), block=block, device=torch.device(device or "cpu"))

    # Looking.

    def show(
        self,
        tokens: Sequence[str] | str | int,
        keys: Sequence[str] | str | int | None = None,
        *,
        q_start: int | None = None,
        batch: int = 0,
        head: int = 0,
    ) -> Drawing:
        """A drawing for the terminal: who may hear whom, the ranges, the visible share, warnings.

        `tokens` are words, a text to split at spaces, or a count; they are queries and keys, unless `keys` differ.

        >>> from rearview import causal
        >>> print(causal().show("I love sushi"))    # doctest: +ELLIPSIS
        causal()  ·  3 queries x 3 keys  ·  66.7 % visible
        ...
        """
        from rearview.masks.show import draw

        return draw(self, tokens, keys, q_start=q_start, batch=batch, head=head)

    def diff(
        self,
        other: Mask,
        q_len: int,
        k_len: int | None = None,
        *,
        q_start: int | None = None,
    ) -> MaskDiff:
        """Where two masks differ at a size.

        >>> from rearview import causal, window
        >>> causal().diff(causal() & window(2), 4).only_first
        3
        """
        from rearview.masks.compare import diff

        return diff(self, other, q_len, k_len, q_start=q_start)

    def equals(self, other: Mask, q_len: int, k_len: int | None = None, *, q_start: int | None = None) -> bool:
        """Do two masks mean the same at this size, however they are written?

        >>> from rearview import causal, window
        >>> causal().equals(window(8), 8), causal().equals(window(8), 9)
        (True, False)
        """
        return self.diff(other, q_len, k_len, q_start=q_start).same

    def warnings(self, q_len: int, k_len: int | None = None, *, q_start: int | None = None) -> tuple[MaskWarning, ...]:
        """What a reader would want to be told: rows that hear nothing, a visible future, inverted polarity.

        >>> from rearview import causal
        >>> [warning.kind for warning in (~causal()).warnings(4)]
        ['empty row', 'visible future', 'looks inverted']
        """
        from rearview.masks.warn import warnings_of

        return warnings_of(self, Frame.of(q_len, k_len, q_start))

    def save_picture(
        self,
        path: str | os.PathLike[str],
        tokens: Sequence[str] | str | int,
        keys: Sequence[str] | str | int | None = None,
        *,
        q_start: int | None = None,
        batch: int = 0,
        head: int = 0,
    ) -> None:
        """Write the mask as a picture, `.svg` or `.png` (needs matplotlib: `pip install 'rearview[pictures]'`)."""
        from rearview.masks.picture import save_picture

        save_picture(self, path, tokens, keys, q_start=q_start, batch=batch, head=head)
