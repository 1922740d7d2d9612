"""The masks that positions alone decide, each with its rule and its ranges.

>>> from rearview import causal, prefix
>>> (causal() | prefix(2)).spans(4).rows()
[[(0, 2)], [(0, 2)], [(0, 3)], [(0, 4)]]
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.masks.constructors import expression
from rearview.masks.data import as_lengths, printed
from rearview.masks.document_window import DocumentWindow
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.spans import Spans


@family("full")
class Full(Mask):
    is_full = True
    is_arithmetic = True

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(key, dtype=torch.bool)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        start = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
        return Spans.of(start, start + frame.k_len, q_len=frame.q_len, k_len=frame.k_len)

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        return 0, k_len

    def _document_window(self) -> DocumentWindow:
        return DocumentWindow()

    def __repr__(self) -> str:
        return "full()"


@family("causal")
class Causal(Mask):
    is_causal = True
    is_arithmetic = True

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        return Spans.of(torch.zeros_like(position), position + 1, q_len=frame.q_len, k_len=frame.k_len)

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        return 0, position + 1

    def _document_window(self) -> DocumentWindow:
        return DocumentWindow(ahead=0)

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if frame.q_start >= frame.k_len - 1 else self

    def __repr__(self) -> str:
        return "causal()"


@family("window")
class Window(Mask):
    """`back` positions, the query's own included, and `ahead` positions after it."""

    is_arithmetic = True
    back: int
    ahead: int

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key > query - self.back) & (key <= query + self.ahead)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        starts, ends = position - self.back + 1, position + self.ahead + 1
        return Spans.of(starts, ends, q_len=frame.q_len, k_len=frame.k_len)

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        return position - self.back + 1, position + self.ahead + 1

    def _document_window(self) -> DocumentWindow:
        return DocumentWindow(self.back, self.ahead)

    def _simplify(self, frame: Frame) -> Mask:
        if frame.q_end > self.back:
            return self
        # The window reaches back to the first key for every query, so only its forward edge is left.
        if frame.q_start + self.ahead >= frame.k_len - 1:
            return Full()
        return Causal() if self.ahead == 0 else self

    def __repr__(self) -> str:
        return f"window({self.back}, ahead={self.ahead})" if self.ahead else f"window({self.back})"


@family("prefix")
class Prefix(Mask):
    is_arithmetic = True
    length: int

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < self.length

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        start = torch.zeros(1, 1, 1, 1, dtype=torch.int32, device=device)
        return Spans.of(start, start + self.length, q_len=frame.q_len, k_len=frame.k_len)

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        return 0, self.length

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if self.length >= frame.k_len else self

    def __repr__(self) -> str:
        return f"prefix({self.length})"


@family()
class FirstKeys(Mask):
    """The first keys of each batch item: what `Prefixes` and `Padding` share. `lengths`: int64 [batch]."""

    lengths: Tensor

    @property
    def batch(self) -> int | None:
        return len(self.lengths)

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < self.lengths.to(key.device)[batch]

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        ends = self.lengths.to(device).clamp(max=frame.k_len).int().view(-1, 1, 1, 1)
        return Spans.of(torch.zeros_like(ends), ends, q_len=frame.q_len, k_len=frame.k_len)


@family("prefixes")
class Prefixes(FirstKeys):
    def __repr__(self) -> str:
        return f"prefix({printed(self.lengths, 'lengths')})"


@family("chunks")
class Chunks(Mask):
    is_arithmetic = True
    size: int

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        floor = "floor"
        return torch.div(query, self.size, rounding_mode=floor) == torch.div(key, self.size, rounding_mode=floor)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        chunk = torch.div(frame.query_positions(device), self.size, rounding_mode="floor") * self.size
        return Spans.of(chunk, chunk + self.size, q_len=frame.q_len, k_len=frame.k_len)

    def _one_range(self, position: int, k_len: int) -> tuple[int, int] | None:
        first = position // self.size * self.size
        return first, first + self.size

    def _simplify(self, frame: Frame) -> Mask:
        return Full() if frame.q_start >= 0 and max(frame.q_end, frame.k_len) <= self.size else self

    def __repr__(self) -> str:
        return f"chunks({self.size})"


# The public constructors check their arguments; the classes above trust them.


@expression("causal()")
def causal() -> Mask:
    """Causal attention: the query at position i hears the keys at positions j <= i.

    >>> causal().to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    return Causal()


@expression("full()")
def full() -> Mask:
    """Every query hears every key (BERT).

    >>> full().to_bool(2).tolist()
    [[True, True], [True, True]]
    """
    return Full()


@expression("window(n) or window(n, ahead=m)")
def window(n: int, *, ahead: int = 0) -> Mask:
    """The `n` most recent positions, the query's own included, and the next `ahead` positions.

    >>> window(2).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    advice = "A window counts the query itself: window(1) hears only itself."
    return Window(whole_number(n, "window(n)", at_least=1, advice=advice), whole_number(ahead, "ahead", at_least=0))


@expression("prefix(n)")
def prefix(n: int | Sequence[int] | Tensor) -> Mask:
    """The first `n` keys, for every query: attention sinks, and prefix-LM as `causal() | prefix(n)`.

    `n` is one number, or one per batch item.

    >>> (causal() | prefix(2)).to_bool(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [1, 1, 1]]
    """
    if isinstance(n, Sequence) or getattr(n, "ndim", 0) > 0:
        return Prefixes(as_lengths(n, "prefix(n)"))  # pyright: ignore[reportArgumentType]
    return Prefix(whole_number(n.item() if isinstance(n, Tensor) else n, "prefix(n)", at_least=0))


@expression("chunks(n) or chunks(n, within=[0, 0, 1, 1])")
def chunks(n: int, *, within: Sequence[int] | Sequence[Sequence[int]] | Tensor | None = None) -> Mask:
    """Queries hear the keys of their own block of `n` positions.

    `within` holds the ids of packed documents, as in `documents(ids)`: blocks are then counted from the first token of
    each document, and end with it. It is short for `along(documents(ids), chunks(n))`.

    >>> chunks(2).to_bool(3).int().tolist()
    [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    >>> chunks(2, within=[0, 0, 0, 1, 1]).spans(5).rows()
    [[(0, 2)], [(0, 2)], [(2, 3)], [(3, 5)], [(3, 5)]]
    """
    blocks = Chunks(whole_number(n, "chunks(n)", at_least=1))
    if within is None:
        return blocks
    # Documents are made of families themselves.
    from rearview.masks.packing import Documents, as_ids

    return Documents(as_ids(within, "chunks(within)")).along(blocks)
