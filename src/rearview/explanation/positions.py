"""Position encodings: added to the input (sinusoidal or a given table), or applied to Q and K as rotations (rotary).

>>> sinusoidal(2, 4).tolist()[0]
[0.0, 1.0, 0.0, 1.0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument


@dataclass(frozen=True)
class Rotary:
    """Rotary positions (https://arxiv.org/abs/2104.09864, eq. 34): pairs of features rotated by position x rate.

    The paper pairs neighbours. With `halves`, feature n is paired with feature n + dim / 2, as in Llama.
    """

    base: float = 10000.0
    first: int = 0
    halves: bool = False

    def turn(self, heads: Tensor, start: int = 0) -> Tensor:
        """[..., time, dim] with each pair rotated by the angle of its position; row 0 is at `start`."""
        time, dim = heads.shape[-2:]
        if dim % 2:
            raise BadArgument("positions", expected="an even head dim for rotary positions", got=dim)
        frequency = self.base ** (-torch.arange(0, dim, 2, dtype=heads.dtype) / dim)
        start += self.first
        angle = torch.arange(start, start + time, dtype=heads.dtype).unsqueeze(-1) * frequency
        one, other = heads.chunk(2, dim=-1) if self.halves else (heads[..., 0::2], heads[..., 1::2])
        turned = (one * angle.cos() - other * angle.sin(), one * angle.sin() + other * angle.cos())
        return torch.cat(turned, dim=-1) if self.halves else torch.stack(turned, dim=-1).flatten(-2)


def sinusoidal(length: int, dim: int, *, first: int = 0) -> Tensor:
    """The original paper's positions (https://arxiv.org/abs/1706.03762, section 3.5), float64 [length, dim].

    >>> sinusoidal(1, 2, first=1).tolist() == [[torch.tensor(1.0).double().sin(), torch.tensor(1.0).double().cos()]]
    True
    """
    position = torch.arange(first, first + length, dtype=torch.float64).unsqueeze(-1)
    angle = position / 10000.0 ** (torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    table = torch.zeros(length, dim, dtype=torch.float64)
    table[:, 0::2], table[:, 1::2] = angle.sin(), angle.cos()[:, : dim // 2]
    return table


def as_numbers(values: Any, argument: str, *, expected: str = "a matrix of numbers") -> Tensor:
    """A tensor, an array or lists as float64 on the CPU, converted directly: another type would round."""
    try:
        return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgument(argument, expected=expected, got=repr(values)) from error


def position_matrix(positions: str | Tensor | Sequence[Sequence[float]], length: int, dim: int) -> Tensor:
    """The matrix P that is added to X, by name or as a table that may have more rows than the input."""
    if isinstance(positions, str):
        if positions != "sinusoidal":
            expected = "'sinusoidal', 'rotary', or a matrix [time, features]"
            raise BadArgument("positions", expected=expected, got=repr(positions))
        return sinusoidal(length, dim)
    table = as_numbers(positions, "positions")
    if table.ndim != 2 or table.shape[0] < length or table.shape[1] != dim:
        expected = f"a matrix of at least {length} rows and exactly {dim} columns, as in X"
        raise BadArgument("positions", expected=expected, got=f"shape {list(table.shape)}")
    return table[:length]
