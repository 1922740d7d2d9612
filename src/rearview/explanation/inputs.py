"""The arguments of `explain`, checked: matrices in float64, split into heads, with names for rows and columns.

>>> row_names("I love", 2, "labels"), numbered("t", 2)
(('I', 'love'), ('t1', 't2'))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.errors import BadArgument
from rearview.explanation.positions import Rotary, as_numbers, position_matrix
from rearview.explanation.trace import Stage


@dataclass(frozen=True)
class Projected:
    """Q, K and V, each float64 [heads, time, dim], the stages that lead to them and the layer that they belong to."""

    query: Tensor
    key: Tensor
    value: Tensor
    labels: tuple[str, ...]
    """The names of the queries."""
    stages: tuple[Stage, ...] = ()
    w_o: Tensor | None = None
    b_o: Tensor | None = None
    biased: bool = False
    """Whether the projections to Q, K and V add a bias."""
    score_bias: Tensor | Alibi | None = None


def as_matrix(values: Any, argument: str) -> Tensor:
    matrix = as_numbers(values, argument)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise BadArgument(argument, expected="a matrix [rows, columns]", got=f"shape {list(matrix.shape)}")
    return matrix


def as_heads(values: Any, num_heads: int, argument: str) -> Tensor:
    given = as_numbers(values, argument)
    if given.ndim == 3 and num_heads == 1 and 0 not in given.shape:
        return given
    return split_heads(as_matrix(values, argument), num_heads, argument)


def split_heads(matrix: Tensor, num_heads: int, argument: str) -> Tensor:
    if matrix.shape[-1] % num_heads:
        raise BadArgument(argument, expected=f"columns that divide into {num_heads} heads", got=matrix.shape[-1])
    return matrix.unflatten(-1, (num_heads, -1)).movedim(-2, 0)


def project(source: Tensor, weight: Any, argument: str) -> Tensor:
    matrix = as_matrix(weight, argument)
    if matrix.shape[0] != source.shape[1]:
        raise BadArgument(argument, expected=f"{source.shape[1]} rows, one per column of x", got=matrix.shape[0])
    return source @ matrix


def as_rotary(positions: Any) -> Rotary | None:
    # An array would answer == with an array.
    if isinstance(positions, str) and positions == "rotary":
        return Rotary()
    return positions if isinstance(positions, Rotary) else None


def as_positions(positions: Any, x: Tensor) -> Tensor | None:
    return None if positions is None else position_matrix(positions, *x.shape)


def row_names(labels: Sequence[str] | str | None, count: int, argument: str) -> tuple[str, ...]:
    if labels is None:
        return numbered("t", count)
    names = tuple(labels.split() if isinstance(labels, str) else labels)
    if len(names) != count or not all(isinstance(name, str) for name in names):
        raise BadArgument(argument, expected=f"{count} labels, one per row", got=repr(labels))
    return names


def column_names(features: Sequence[str] | None, x: Tensor) -> tuple[str, ...]:
    if features is None:
        return numbered("x", x.shape[1])
    if isinstance(features, str) or len(features) != x.shape[1] or not all(isinstance(name, str) for name in features):
        raise BadArgument("features", expected=f"{x.shape[1]} names, one per column of x", got=repr(features))
    return tuple(features)


def head_column_names(features: Sequence[str] | None, heads: Tensor, which: str) -> tuple[str, ...]:
    count = heads.shape[-1]
    if features is None:
        return numbered("v" if which == "value" else "d", count)
    if isinstance(features, str) or len(features) != count or not all(isinstance(name, str) for name in features):
        raise BadArgument(f"{which}_features", expected=f"{count} names, one per column of {which}", got=repr(features))
    return tuple(features)


def numbered(letter: str, count: int) -> tuple[str, ...]:
    return tuple(f"{letter}{n}" for n in range(1, count + 1))
