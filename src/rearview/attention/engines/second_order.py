"""Gradients that have gradients themselves, for an engine whose backward pass is written by hand.

They go through the definition, which autograd can follow to any order: for sizes where the dense form is affordable.

>>> import torch
>>> from rearview import attend
>>> x = torch.ones(1, 1, 2, 1, dtype=torch.float64, requires_grad=True)
>>> bool(torch.autograd.gradgradcheck(lambda x: attend(x, x, x, engine="blocks"), x))
True
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rearview.attention.engines import reference
from rearview.attention.request import Request
from rearview.errors import Unsupported


def gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    d_out: Tensor,
    d_lse: Tensor | None,
    *,
    request_of: Callable[[Tensor, Tensor, Tensor, Tensor | None], Request],
    dropout: float,
    engine: str,
) -> tuple[Tensor | None, ...]:
    """Of query, key, value and bias; `request_of(query, key, value, bias)` is the call without its dropout."""
    if dropout:
        raise Unsupported(
            f"second derivatives of engine {engine!r}",
            ["dropout cannot be drawn again here (torch.func asks for gradients that have gradients, too)"],
            advice="Use engine='reference'.",
        )
    given = [tensor for tensor in (query, key, value, bias) if tensor is not None]

    def define(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None) -> tuple[Tensor, ...]:
        out, lse = reference.run(request_of(query, key, value, bias))
        return (out,) if d_lse is None else (out, lse)

    # That of torch.func, because it works inside torch.func's own transforms as well as outside.
    _, pull_back, *_ = torch.func.vjp(define, *given)
    found = pull_back((d_out,) if d_lse is None else (d_out, d_lse))
    return *found, *[None] * (4 - len(found))
