"""What a config or a batch must satisfy, said with the user's own names.

>>> from rearview.models import GPTConfig
>>> GPTConfig(vocab_size=65, width=30, heads=4)
Traceback (most recent call last):
rearview.errors.BadArgument: width: expected a multiple of heads = 4, got 30.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number
from rearview.models.feedforward import ACTIVATIONS


def check_sizes(config: Any, *names: str) -> None:
    """Every named size is a whole number of at least 1; one that may be left out may be None."""
    for name in names:
        if getattr(config, name) is not None:
            whole_number(getattr(config, name), name, at_least=1)
    if config.activation not in ACTIVATIONS:
        raise BadArgument("activation", expected=f"one of {', '.join(ACTIVATIONS)}", came=repr(config.activation))
    dropout = config.dropout
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise BadArgument("dropout", expected="a number from 0 up to, not including, 1", came=repr(dropout))


def check_share(config: Any, **divisors: str) -> None:
    """`width="heads"`: the width divides into the heads."""
    for whole, parts in divisors.items():
        number, divisor = getattr(config, whole), getattr(config, parts)
        if divisor is not None and number % divisor:
            raise BadArgument(whole, expected=f"a multiple of {parts} = {divisor}", came=number)


def embed(table: nn.Embedding, tokens: Any, argument: str = "tokens") -> Tensor:
    """The rows of the table, or an error that says which id it does not have."""
    check_tokens(tokens, argument)
    if torch.compiler.is_compiling():
        return table(tokens)
    try:
        return table(tokens)
    except IndexError:
        # On a CPU torch looks at every id by itself; looking first would read the values of every batch twice.
        low, high = (int(edge) for edge in tokens.aminmax())
        expected = f"ids from 0 to {table.num_embeddings - 1}"
        raise BadArgument(argument, expected=expected, came=low if low < 0 else high) from None


def check_tokens(tokens: Any, argument: str = "tokens") -> None:
    if not isinstance(tokens, Tensor) or tokens.dtype not in (torch.int64, torch.int32):
        came = tokens.dtype if isinstance(tokens, Tensor) else type(tokens).__name__
        raise BadArgument(argument, expected="a tensor of integers [batch, time]", came=came)
    if tokens.ndim != 2 or tokens.shape[1] == 0:
        raise BadArgument(argument, expected="[batch, time], of one position or more", came=list(tokens.shape))


def check_context(length: int, context: int, *, held: int = 0) -> None:
    if length > context:
        came = f"{length} ({held} of them in the cache)" if held else str(length)
        advice = "Make the model with a longer context, or give it the last tokens only."
        raise BadArgument(
            "tokens", expected=f"at most {context} positions, the model's context", came=came, advice=advice
        )
