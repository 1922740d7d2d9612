"""The numbers of a page: many arrays in one compressed text, with four bytes per number or, to save space, two.

>>> arrays = PackedArrays(short=True)
>>> arrays.add(torch.tensor([[0.5, 0.0]]))
{'at': 0, 'code': 'l2', 'shape': [1, 2], 'largest': 0.5}
>>> arrays.size, isinstance(arrays.text(), str)
(4, True)
"""

from __future__ import annotations

import base64
import sys
import zlib
from typing import Any

import torch
from torch import Tensor

# A number in two bytes is its sign and one of STEPS steps of its logarithm over POWERS powers of two below the largest:
# the relative error is 0.034 %.
STEPS, POWERS = 32766, 32
CODES = {torch.float32: "f4", torch.bfloat16: "b2", torch.float16: "h2", torch.int32: "i4"}


# Where an array begins, how it is coded, and its shape, as the page reads it.
ArrayEntry = dict[str, Any]


class PackedArrays:
    """Arrays one after the other; `add` returns the entry of each."""

    def __init__(self, *, short: bool):
        self.short = short
        self.size = 0
        self._parts: list[bytes] = []

    def add(self, values: Tensor) -> ArrayEntry:
        """Pack the numbers of a map or a curve."""
        entry: ArrayEntry = {"at": self.size, "code": "f4", "shape": list(values.shape)}
        if self.short:
            largest = float(values.abs().max()) if values.numel() else 0.0
            entry.update(code="l2", largest=largest)
            values = shortened(values, largest)
        else:
            values = values.float()
        self._append(values)
        return entry

    def keep(self, values: Tensor) -> ArrayEntry:
        """Pack numbers in their own type: bfloat16 takes two bytes and loses nothing.

        >>> PackedArrays(short=True).keep(torch.ones(3, dtype=torch.bfloat16))
        {'at': 0, 'code': 'b2', 'shape': [3]}
        """
        if values.dtype not in CODES:
            values = values.float()
        entry = {"at": self.size, "code": CODES[values.dtype], "shape": list(values.shape)}
        self._append(values.view(torch.int16) if values.dtype == torch.bfloat16 else values)
        return entry

    def _append(self, values: Tensor) -> None:
        data = _bytes(values)
        # Typed arrays in a browser begin at a multiple of their width.
        data += bytes(-len(data) % 4)
        self._parts.append(data)
        self.size += len(data)

    def data(self) -> bytes:
        """All arrays as they are."""
        return b"".join(self._parts)

    def text(self) -> str:
        """All arrays, compressed, as base64."""
        return base64.b64encode(zlib.compress(self.data(), 6)).decode()


def shortened(values: Tensor, largest: float) -> Tensor:
    """Numbers as int16: sign x (1 + steps of the logarithm); 0 for 0 and for numbers below 2^-32 of the largest."""
    # log2(0) is -inf, which becomes 0 like any number that is too small.
    steps = values.abs().div_(largest or 1.0).log2_().add_(POWERS).mul_(STEPS / POWERS).round_()
    return steps.add_(1).clamp_(min=0).mul_(values.sign()).to(torch.int16)


def _bytes(values: Tensor) -> bytes:
    values = values.contiguous()
    raw = bytes(values.view(torch.uint8).flatten().tolist()) if values.numel() < 64 else values.numpy().tobytes()
    assert sys.byteorder == "little", "typed arrays of a page are little-endian"
    return raw
