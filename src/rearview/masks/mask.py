"""Mask: may the query at position i hear the key at position j? True = may be heard, everywhere.

    >>> from rearview import causal, window
    >>> mask = causal() & window(3)
    >>> mask
    causal() & window(3)
    >>> mask.to_bool(4).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1]]

This file holds what every mask can do. The families are in `families.py`, `packing.py` and `unstructured.py`, the
operators in `operators.py`. Conversions to and from other libraries are in `exchange/`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NoReturn, Self, TypeVar, dataclass_transform

import torch
from torch import Tensor

from rearview.errors import BadArgument, NoRangeForm, RearviewError
from rearview.masks.data import as_device
from rearview.masks.document_window import DocumentWindow
from rearview.masks.frame import Frame, whole_number
from rearview.masks.spans import Spans

if TYPE_CHECKING:
    from rearview.drawing.text import Drawing
    from rearview.masks.inspection.difference import MaskDiff
    from rearview.masks.inspection.warning import MaskWarning
    from rearview.masks.tiles import Tiles

# A decoding loop asks for one new frame per step, a training loop for the same few: a handful serves both.
REMEMBERED_FRAMES = 8

# Positions of a mask that has no length of its own, where a drawing is not told how many.
DEFAULT_LENGTH = 8

# The families that `encoding.py` can write down, by their word.
FAMILIES: dict[str, type[Mask]] = {}
Family = TypeVar("Family", bound="type[Mask]")
Derived = TypeVar("Derived")


@dataclass_transform(eq_default=False, frozen_default=True)
def family(word: str = "") -> Callable[[Family], Family]:
    """Class decorator for a family of masks: a frozen dataclass with slots.

    A family with a `word` can be carried by a compiled graph (see `encoding.py`). Its fields are then whole numbers,
    tensors and masks.
    """

    def decorate(cls: Family) -> Family:
        made = dataclass(frozen=True, slots=True, eq=False, repr=False)(cls)
        # Those of Mask raise with advice.
        del made.__setattr__, made.__delattr__
        made.word = word
        if word:
            FAMILIES[word] = made
        return made

    return decorate


class Mask:
    """Which keys each query may hear: an immutable value without a size. Combine masks with `&`, `|` and `~`.

    A family overrides `visible`, and `_spans` if it has ranges; the rest only where the default is wrong. Nested masks,
    `to` and the encoding for compiled graphs follow from its fields.
    """

    # `_prepared` is what `attend` remembers for calls with this mask.
    __slots__ = ("_derived", "_prepared", "_remembered")
    __match_args__: ClassVar[tuple[str, ...]] = ()

    word: ClassVar[str] = ""
    """The name of the family in a compiled graph; empty where it cannot be carried by one."""
    is_full: ClassVar[bool] = False
    is_causal: ClassVar[bool] = False
    is_arithmetic: ClassVar[bool] = False
    """Whether the rule itself reads nothing but positions. Nested masks answer for themselves."""
    is_padding: ClassVar[bool] = False
    """Whether it marks the real keys. What a model computes at the other positions is not used."""
    is_branching: ClassVar[bool] = False
    """Whether its positions may be alternatives, and not one sequence."""
    is_lagged: ClassVar[bool] = False
    """Whether the items of a batch are at positions of their own."""

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
        """Whether the mask is a few ranges per row. Engines then read its ranges, and otherwise its rule."""
        return True

    @property
    def range_obstacle(self) -> str | None:
        """Why the mask is not a few ranges per row; None where it is.

        >>> from rearview import causal, dilated
        >>> (causal() & dilated(2)).range_obstacle
        'the keys that a query hears are not a few ranges'
        """
        if self.has_ranges:
            return None
        of_parts = [obstacle for part in self._parts() if (obstacle := part.range_obstacle)]
        return of_parts[0] if of_parts else "the keys that a query hears are not a few ranges"

    @property
    def own_length(self) -> int | None:
        """The sequence length that the mask's own data describe, or None when it has no such data."""
        return min([known for part in self._parts() if (known := part.own_length)], default=None)

    @property
    def document_ids(self) -> Tensor | None:
        """The ids [T] or [batch, T] of packed documents; None for any other mask. `walk` finds nested ones."""
        return None

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """The rule itself on broadcastable index tensors: bool, of any shape that broadcasts to theirs.

        `query` and `key` are positions.
        """
        raise TypeError(f"{type(self).__name__} must define visible")

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        raise NoRangeForm(
            f"{self!r} has no range form",
            [self.range_obstacle or "its family states none"],
            advice="Use to_bool(q_len, k_len) or tiles(q_len, k_len), which every mask has.",
        )

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        """The range [start, end) that one query hears, without tensors; None where it is not one range, or unknown.

        The range may extend beyond the keys on either side.
        """
        return None

    def _document_window(self) -> DocumentWindow | None:
        """The mask as a window within the documents of its data; None for any other mask."""
        return None

    def _check(self, frame: Frame) -> None:
        """Raise when the mask's own data do not cover the frame."""

    def _check_values(self) -> None:
        """Raise when the data of the mask, or of one nested in it, have no values."""
        for part in self.walk():
            if any([isinstance(value, Tensor) and value.is_meta for value in part._flatten()]):
                raise BadArgument(
                    "mask",
                    expected="data that have values",
                    got=f"{part!r}, whose data are on meta",
                    advice="Make the mask from a tensor or a list outside of torch.device('meta').",
                )

    def _simplify(self, frame: Frame) -> Mask:
        """An equal mask in this frame, without the parts that change nothing there. Plain arithmetic, no tensors."""
        return self

    def _derive(self, what: str, work_out: Callable[[], Derived]) -> Derived:
        """A value that follows from the mask's data alone, worked out once. Any thread may ask."""
        # A traced tensor must not outlive its trace.
        if torch.compiler.is_compiling():
            return work_out()
        try:
            derived: dict[str, Derived] = self._derived
        except AttributeError:
            derived = {}
            object.__setattr__(self, "_derived", derived)
        if what not in derived:
            derived[what] = work_out()
        return derived[what]

    # What the mask is made of.

    def _flatten(self) -> tuple[object, ...]:
        """The fields of the family, in the order in which `_unflatten` takes them: numbers, tensors, masks."""
        return tuple([getattr(self, name) for name in self.__match_args__])

    @classmethod
    def _unflatten(cls, values: Sequence[object]) -> Self:
        return cls(*values)

    def _parts(self) -> list[Mask]:
        return [value for value in self._flatten() if isinstance(value, Mask)]

    def walk(self) -> Iterator[Mask]:
        """The mask itself and every mask nested in it, at any depth.

        >>> from rearview import causal, window
        >>> [str(part) for part in (~causal() & window(3)).walk()]
        ['~causal() & window(3)', '~causal()', 'causal()', 'window(3)']
        """
        yield self
        for part in self._parts():
            yield from part.walk()

    def to(self, device: torch.device | str) -> Mask:
        """The same mask with its tensors, if it has any, on `device`. Saves a copy at every use there.

        >>> from rearview import documents
        >>> documents([0, 0, 1]).to("cpu")
        documents([0, 0, 1])
        """
        device = as_device(device)
        values = self._flatten()
        moved = [value.to(device) if isinstance(value, (Tensor, Mask)) else value for value in values]
        same = all(one is other for one, other in zip(values, moved, strict=True))
        return self if same else self._unflatten(moved)

    # The algebra. The imports are local because the operators are masks themselves.

    def __and__(self, other: Mask) -> Mask:
        from rearview.masks.operators import And

        return And.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __or__(self, other: Mask) -> Mask:
        from rearview.masks.operators import Or

        return Or.of(self, other) if isinstance(other, Mask) else NotImplemented

    def __invert__(self) -> Mask:
        from rearview.masks.operators import Not

        return Not.of(self)

    def __bool__(self) -> NoReturn:
        raise BadArgument(
            "mask",
            expected="`&`, `|` and `~` between masks",
            got="`and`, `or`, `not` or `if`, which ask a mask for one truth value",
            advice="Write causal() & window(3), not causal() and window(3).",
        )

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a mask is immutable; make a new one instead of setting {name!r}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"a mask is immutable; {name!r} cannot be deleted")

    # A value that never changes is its own copy. (A layer that holds a mask is deep-copied often: EMA, clones.)
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

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
        return self.spans_in(Frame.of(q_len, k_len, q_start), as_device(device))

    def spans_in(self, frame: Frame, device: torch.device) -> Spans:
        """`spans` for a frame that is already made. The last few answers are remembered; any thread may ask."""
        self._check(frame)
        # A traced tensor must not outlive its trace.
        if torch.compiler.is_compiling():
            return self._spans(frame, device)
        try:
            remembered: dict[tuple[Frame, torch.device], Spans] = self._remembered
        except AttributeError:
            remembered = {}
            object.__setattr__(self, "_remembered", remembered)
        # Each step is atomic, so threads need no lock: at worst two of them work out the same frame.
        found = remembered.pop((frame, device), None)
        if found is None:
            self._check_values()
            found = self._spans(frame, device)
        remembered[frame, device] = found
        if len(remembered) > REMEMBERED_FRAMES:
            for old in list(remembered)[:-REMEMBERED_FRAMES]:
                remembered.pop(old, None)
        return found

    def packing_in(self, frame: Frame) -> DocumentWindow | None:
        """Packed documents in a frame of all positions, as what makes their ranges; None for any other mask or frame.

        A new packing at every step of a training would make the ranges themselves costly.

        >>> from rearview import causal, documents
        >>> (causal() & documents([0, 0, 1])).packing_in(Frame.of(3)).documents
        2
        """
        if frame.q_start != 0 or frame.q_len != frame.k_len:
            return None
        found = self._derive("document window", self._document_window)
        if found is None or found.ids is None or not found.hears_itself or found.ids.shape[-1] != frame.k_len:
            return None
        return found

    def one_range(self, frame: Frame) -> tuple[int, int] | None:
        """The keys [start, end) that the only query of a frame hears; None where that is not one range, or unknown.

        Decoding asks for a new length at every step, and tensors of ranges would take longer to make than the step
        itself. The keys are cut to this range instead, and no mask is needed any more.

        >>> from rearview import causal, window
        >>> (causal() & window(3)).one_range(Frame.of(1, 8))
        (5, 8)
        """
        found = self._one_range(frame.q_start, frame.k_len)
        if found is None:
            return None
        start, end = max(found[0], 0), min(found[1], frame.k_len)
        return (start, end) if start < end else None

    def range_of_step(self, k_len: int) -> tuple[int, int] | None:
        """`one_range` for the query at the last of `k_len` positions: one new token over a cache.

        >>> from rearview import causal, window
        >>> (causal() & window(3)).range_of_step(8)
        (5, 8)
        """
        k_len = whole_number(k_len, "k_len", at_least=1)
        frame = Frame(1, k_len, k_len - 1)
        self._check(frame)
        return self._simplify(frame).one_range(frame)

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
        visible = self.visible_in(Frame.of(q_len, k_len, q_start), as_device(device))
        return visible[0, 0] if self.batch is None and self.heads is None else visible

    def visible_in(self, frame: Frame, device: torch.device, rows: Tensor | None = None) -> Tensor:
        """Bool [batch or 1, heads or 1, rows, k_len] for a frame; `rows` are indices of queries, all unless given."""
        self._check(frame)
        if device.type != "meta" and not torch.compiler.is_compiling():
            self._check_values()
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

        return Tiles.of(self, Frame.of(q_len, k_len, q_start), block=block, device=as_device(device))

    # Inspection.

    def show(
        self,
        tokens: Sequence[str] | str | int,
        keys: Sequence[str] | str | int | None = None,
        *,
        q_start: int | None = None,
        batch: int = 0,
        head: int = 0,
    ) -> Drawing:
        """A drawing for the terminal: which query hears which key, the ranges, the visible share, warnings.

        `tokens` are words, a text that is split at spaces, or a number of tokens. They are the queries, and the keys
        unless `keys` is given.

        >>> from rearview import causal
        >>> print(causal().show("I love sushi"))    # doctest: +ELLIPSIS
        causal()  ·  3 queries x 3 keys  ·  66.7 % visible
        ...
        """
        from rearview.masks.inspection.terminal import draw

        return draw(self, tokens, keys, q_start=q_start, batch=batch, head=head)

    def _repr_html_(self) -> str:
        """The drawing over the mask's own length, for a notebook; the expression where it cannot be drawn."""
        from rearview.drawing.html import preformatted

        try:
            return preformatted(self.show(self.own_length or DEFAULT_LENGTH))
        except RearviewError:
            return preformatted(repr(self))

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
        from rearview.masks.inspection.difference import diff

        return diff(self, other, q_len, k_len, q_start=q_start)

    def equals(self, other: Mask, q_len: int, k_len: int | None = None, *, q_start: int | None = None) -> bool:
        """Whether two masks mean the same at this size, however they are written.

        >>> from rearview import causal, window
        >>> causal().equals(window(8), 8), causal().equals(window(8), 9)
        (True, False)
        """
        return self.diff(other, q_len, k_len, q_start=q_start).same

    def warnings(self, q_len: int, k_len: int | None = None, *, q_start: int | None = None) -> tuple[MaskWarning, ...]:
        """Likely mistakes: rows that hear nothing, a visible future, inverted polarity.

        >>> from rearview import causal
        >>> [warning.kind for warning in (~causal()).warnings(4)]
        ['empty row', 'visible future', 'looks inverted']
        """
        from rearview.masks.inspection.warning import warnings_of

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
        """Write the mask as an `.svg`, `.png` or `.pdf` (needs matplotlib: `pip install 'rearview[pictures]'`)."""
        from rearview.masks.inspection.picture import save_picture

        save_picture(self, path, tokens, keys, q_start=q_start, batch=batch, head=head)
