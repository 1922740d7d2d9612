"""Frame: the positions of queries and keys. They are part of what a mask means.

>>> from rearview.masks import Frame
>>> Frame.of(1, 8)          # one query over a cache of eight keys: it is at position 7
Frame(q_len=1, k_len=8, q_start=7)
"""

import operator
from dataclasses import dataclass
from typing import SupportsIndex, cast

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.data import described

# Positions are int32, and the sum of two numbers (a position and the `ahead` of a window) must still fit.
LARGEST_NUMBER = 2**30 - 1


def whole_number(value: object, argument: str, *, at_least: int, advice: str = "") -> int:
    """`value` as an int, or an error that names the argument. Refuses bools and floats."""
    number: int | None = value  # pyright: ignore[reportAssignmentType]
    # An int is left alone: in a compiled graph it may be symbolic, and converting it would fix its value.
    if type(value) not in (int, torch.SymInt):
        try:
            # A bool is an int to Python, and a bool tensor to torch; window(True) is a mistake, not a window of 1.
            is_bool = isinstance(value, bool) or (isinstance(value, Tensor) and value.dtype == torch.bool)
            number = None if is_bool else operator.index(cast(SupportsIndex, value))
        except TypeError:
            number = None
    if number is None or number < at_least:
        got = described(value) if isinstance(value, Tensor) and value.ndim else repr(value)
        raise BadArgument(argument, expected=f"an integer of at least {at_least}", got=got, advice=advice)
    if number > LARGEST_NUMBER:
        got = f"{number:,}" if number < 2**64 else "more than 2**64"
        raise BadArgument(argument, expected=f"an integer of at most 2**30 - 1 ({LARGEST_NUMBER:,})", got=got)
    return number


@dataclass(frozen=True)
class Frame:
    """The positions of a call: keys at 0..k_len-1, queries at q_start..q_start+q_len-1."""

    q_len: int
    k_len: int
    q_start: int

    @classmethod
    def of(cls, q_len: int, k_len: int | None = None, q_start: int | None = None) -> "Frame":
        """The frame of `q_len` queries over `k_len` keys; `k_len` is `q_len` unless given.

        The queries are at the last positions of the keys unless `q_start` says otherwise.
        """
        q_len = whole_number(q_len, "q_len", at_least=0)
        k_len = q_len if k_len is None else whole_number(k_len, "k_len", at_least=0)
        if q_start is None:
            return cls(q_len, k_len, k_len - q_len)
        q_start = whole_number(q_start, "q_start", at_least=0)
        whole_number(q_start + q_len, "q_start + q_len", at_least=0)
        return cls(q_len, k_len, q_start)

    @property
    def q_end(self) -> int:
        """One past the position of the last query."""
        return self.q_start + self.q_len

    def query_positions(self, device: torch.device | str | None = None) -> Tensor:
        """The positions of the queries: int32 [1, 1, q_len, 1], the axes of `Spans`."""
        return torch.arange(self.q_start, self.q_end, dtype=torch.int32, device=device).view(1, 1, -1, 1)
