"""Validation of configs and token tensors; the errors use the names of the config.

>>> from rearview.models import GPTConfig
>>> GPTConfig(vocab_size=65, width=30, heads=4)
Traceback (most recent call last):
rearview.errors.BadArgument: width: expected a multiple of heads = 4, got 30.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Protocol

import torch
from torch import Tensor, nn

from rearview.attention.sequence_shard import active_shard
from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.models.feedforward import ACTIVATIONS


class Config(Protocol):
    """The fields that all configs have."""

    @property
    def activation(self) -> str: ...

    @property
    def dropout(self) -> float: ...

    @property
    def norm_eps(self) -> float: ...


# Fields of the configs that are True or False, and positive numbers.
FLAGS, NUMBERS = ("bias", "tied", "gated", "scaled"), ("norm_eps", "rotary_base")


def check_sizes(config: Config, *names: str) -> None:
    """Check that the named sizes are integers of at least 1, or None where that is their default, and all other fields
    that several configs have."""
    defaults = {field.name: field.default for field in fields(config)}  # pyright: ignore[reportArgumentType]
    for name in names:
        if getattr(config, name) is not None or defaults[name] is not None:
            whole_number(getattr(config, name), name, at_least=1)
    for name in FLAGS:
        if not isinstance(getattr(config, name, True), bool):
            raise BadArgument(name, expected="True or False", got=repr(getattr(config, name)))
    for name in NUMBERS:
        number = getattr(config, name, 1.0)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not 0 < number < math.inf:
            raise BadArgument(name, expected="a positive number", got=repr(number))
    if not isinstance(config.activation, str) or config.activation not in ACTIVATIONS:
        raise BadArgument("activation", expected=f"one of {', '.join(ACTIVATIONS)}", got=repr(config.activation))
    dropout = config.dropout
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise BadArgument("dropout", expected="a number of at least 0 and below 1", got=repr(dropout))


def check_divides(config: Config, **divisors: str) -> None:
    """Check divisibility: `width="heads"` requires that the width is a multiple of the number of heads."""
    for whole, parts in divisors.items():
        number, divisor = getattr(config, whole), getattr(config, parts)
        if divisor is not None and number % divisor:
            raise BadArgument(whole, expected=f"a multiple of {parts} = {divisor}", got=number)


def embed(table: nn.Embedding, tokens: Tensor, argument: str = "tokens") -> Tensor:
    """The embeddings of the tokens. An id that the table does not have raises `BadArgument`."""
    check_tokens(tokens, argument)
    if torch.compiler.is_compiling():
        return table(tokens)
    try:
        return table(tokens)
    except IndexError:
        # torch checks every id on a CPU anyway; to check first would read every batch twice.
        low, high = (int(edge) for edge in tokens.aminmax())
        expected = f"ids from 0 to {table.num_embeddings - 1}"
        raise BadArgument(argument, expected=expected, got=low if low < 0 else high) from None


def check_tokens(tokens: object, argument: str = "tokens") -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        got = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise BadArgument(argument, expected="a tensor of integers [batch, time]", got=got)
    # A rank of a layout may hold no position at all.
    if tokens.ndim != 2 or (tokens.shape[1] == 0 and active_shard() is None):
        raise BadArgument(argument, expected="shape [batch, time] with at least one position", got=list(tokens.shape))


def check_context(length: int, context: int, *, held: int = 0) -> None:
    if length > context:
        got = f"{length} ({held} of them in the cache)" if held else str(length)
        advice = "Build the model with a longer context, or pass only the last tokens."
        raise BadArgument(
            "tokens", expected=f"at most {context} positions, the model's context", got=got, advice=advice
        )
