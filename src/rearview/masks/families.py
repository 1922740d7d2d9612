"""The masks that positions alone decide, each with its rule and its ranges.

>>> from rearview import causal, prefix
>>> (causal() | prefix(2)).spans(4).rows()
[[(0, 2)], [(0, 2)], [(0, 3)], [(0, 4)]]
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.masks.data import as_lengths, printed
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans


class Full(Mask):
    __slots__ = ()

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(key, dtype=torch.bool)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        start = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
        return Spans.of(start, start + frame.k_len, q_len=frame.q_len, k_len=frame.k_len)

    def __repr__(self) -> str:
        return "full()"


class Causal(Mask):
    __slots__ = ()

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        return Spans.of(torch.zeros_like(position), position + 1, q_len=frame.q_len, k_len=frame.k_len)

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if frame.q_start >= frame.k_len - 1 else self

    def __repr__(self) -> str:
        return "causal()"


class Window(Mask):
    __slots__ = ("ahead", "back")
    back: int
    ahead: int

    def __init__(self, back: int, ahead: int):
        object.__setattr__(self, "back", back)
        object.__setattr__(self, "ahead", ahead)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key > query - self.back) & (key <= query + self.ahead)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        starts, ends = position - self.back + 1, position + self.ahead + 1
        return Spans.of(starts, ends, q_len=frame.q_len, k_len=frame.k_len)

    def _simplify(self, frame: Frame) -> Mask:
        if frame.q_end > self.back:
            return self
        # The window reaches back to the first key for every query, so only its forward edge is left.
        if frame.q_start + self.ahead >= frame.k_len - 1:
            return Full()
        return Causal() if self.ahead == 0 else self

    def __repr__(self) -> str:
        return f"window({self.back}, ahead={self.ahead})" if self.ahead else f"window({self.back})"


class Prefix(Mask):
    """`lengths` is one int for all, or an int64 tensor [batch]."""

    __slots__ = ("lengths",)
    lengths: int | Tensor

    def __init__(self, lengths: int | Tensor):
        object.__setattr__(self, "lengths", lengths)

    @property
    def batch(self) -> int | None:
        return None if isinstance(self.lengths, int) else len(self.lengths)

    def to(self, device: torch.device | str) -> Mask:
        return self if isinstance(self.lengths, int) else Prefix(self.lengths.to(device))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        lengths = self.lengths
        return key < (lengths if isinstance(lengths, int) else lengths.to(key.device)[batch])

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return first_keys(self.lengths, frame, device)

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if isinstance(self.lengths, int) and self.lengths >= frame.k_len else self

    def __repr__(self) -> str:
        return f"prefix({self.lengths if isinstance(self.lengths, int) else printed(self.lengths, 'lengths')})"


class Chunks(Mask):
    __slots__ = ("size",)
    size: int

    def __init__(self, size: int):
        object.__setattr__(self, "size", size)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        floor = "floor"
        return torch.div(query, self.size, rounding_mode=floor) == torch.div(key, self.size, rounding_mode=floor)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        chunk = torch.div(frame.query_positions(device), self.size, rounding_mode="floor") * self.size
        return Spans.of(chunk, chunk + self.size, q_len=frame.q_len, k_len=frame.k_len)

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if frame.q_start >= 0 and max(frame.q_end, frame.k_len) <= self.size else self

    def __repr__(self) -> str:
        return f"chunks({self.size})"


# The public constructors: they check, the classes above trust.


def full() -> Mask:
    """Everyone hears everyone (BERT).

    >>> full().to_bool(2).tolist()
    [[True, True], [True, True]]
    """
    return Full()


def causal() -> Mask:
    """Only look back: the query at position i hears the keys at positions j <= i.

    >>> causal().to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Causal()


def window(n: int, *, ahead: int = 0) -> Mask:
    """The `n` most recent positions, itself included, and up to `ahead` positions further on.

    >>> window(2).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    advice = "A window counts the position itself: window(1) hears only itself."
    return Window(whole_number(n, "window(n)", at_least=1, advice=advice), whole_number(ahead, "ahead", at_least=0))


def prefix(n: int | Sequence[int] | Tensor) -> Mask:
    """The first `n` keys, for everyone: attention sinks, and prefix-LM as `causal() | prefix(n)`.

    One number for all, or one a batch item.

    >>> (causal() | prefix(2)).to_bool(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(n, int) or not isinstance(n, (Sequence, Tensor)) or (isinstance(n, Tensor) and n.ndim == 0):
        return Prefix(whole_number(n.item() if isinstance(n, Tensor) else n, "prefix(n)", at_least=0))
    return Prefix(as_lengths(n, "prefix(n)"))


def chunks(n: int) -> Mask:
    """The same block of `n` positions.

    >>> chunks(2).to_bool(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    """
    return Chunks(whole_number(n, "chunks(n)", at_least=1))


def first_keys(lengths: int | Tensor, frame: Frame, device: torch.device) -> Spans:
    ends = torch.as_tensor(lengths, device=device).clamp(max=frame.k_len).int().view(-1, 1, 1, 1)
    return Spans.of(torch.zeros_like(ends), ends, q_len=frame.q_len, k_len=frame.k_len)
