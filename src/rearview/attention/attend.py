"""attend(): one meaning, many engines.

>>> import torch
>>> from rearview import attend, causal, window
>>> x = torch.randn(1, 2, 5, 8)
>>> attend(x, x, x, mask=causal() & window(3)).shape
torch.Size([1, 2, 5, 8])
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines import ENGINES, reference
from rearview.attention.plan import resolve
from rearview.attention.request import Request
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.data import as_data


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = ...,
    q_start: int | None = ...,
    bias: Tensor | Alibi | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    engine: str = ...,
    return_lse: Literal[False] = ...,
) -> Tensor: ...


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = ...,
    q_start: int | None = ...,
    bias: Tensor | Alibi | None = ...,
    scale: float | None = ...,
    softcap: float | None = ...,
    dropout: float = ...,
    generator: torch.Generator | None = ...,
    engine: str = ...,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask = causal(),
    q_start: int | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    dropout: float = 0.0,
    generator: torch.Generator | None = None,
    engine: str = "auto",
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softcap(scale x Q K^T) + bias, over the keys that the mask lets each query hear) x V.

    Args:
        query: [batch, heads, time, dim]; also [batch, time, dim] and [time, dim], for one head.
        key, value: the same; fewer heads serve equal groups of query heads (GQA). Their dims may differ.
        mask: who may be heard. Only look back, unless asked otherwise; `full()` for no mask.
        q_start: the position of the first query. By default the queries stand at the last positions of the keys,
            so a step with a cache needs nothing special.
        bias: added to the scores: a tensor that broadcasts to [batch, heads, query, key] and may need gradients,
            or `alibi(heads)`.
        scale: 1 / sqrt(dim) unless given.
        softcap: c in c x tanh(score / c), before the bias.
        dropout: the share of weights that is dropped, the rest scaled up. `generator` makes it repeatable.
        engine: "auto", "reference", "sdpa", "blocks", "native" or "flex". A named engine does the call exactly or
            raises `Unsupported`; it never falls back. `plan` tells what "auto" takes.
        return_lse: also return the log-sum-exp of the visible scores, [batch, heads, time].

    A row that hears nothing is exactly 0 (its log-sum-exp is -inf), with gradients that are 0.

    >>> import torch
    >>> q, k, v = torch.tensor([[1.0], [1.0]]), torch.zeros(2, 1), torch.tensor([[2.0], [4.0]])
    >>> attend(q, k, v).tolist()
    [[2.0], [3.0]]
    """
    request = Request.of(
        query,
        key,
        value,
        mask=mask,
        q_start=q_start,
        bias=bias,
        scale=scale,
        softcap=softcap,
        dropout=dropout,
        generator=generator,
        return_lse=return_lse,
    )
    name, _ = resolve(request, engine)
    out, lse = _nothing_to_hear(request) if _is_empty(request) else ENGINES[name].run(request)
    out = _as_given(out, query)
    # An engine that was asked for the log-sum-exp returns it; one that was not may.
    return (out, _as_given(lse, query)) if return_lse and lse is not None else out


def weights(
    query: Tensor,
    key: Tensor,
    *,
    mask: Mask = causal(),
    rows: int | list[int] | Tensor | None = None,
    q_start: int | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> Tensor:
    """The exact weights of chosen rows, whatever engine runs the rest: [batch, heads, rows, k_len].

    `rows` are indices of queries (negative ones count from the end), all unless given; memory is rows x k_len.
    Half precision is computed, and returned, in float32.

    >>> import torch
    >>> x = torch.eye(3)
    >>> weights(x, x, rows=0).tolist()
    [[1.0, 0.0, 0.0]]
    """
    request = Request.of(query, key, key, mask=mask, q_start=q_start, bias=bias, scale=scale, softcap=softcap)
    chosen = None if rows is None else _row_indices(rows, request)
    count = request.frame.q_len if chosen is None else len(chosen)
    if _is_empty(request) or count == 0:
        shape = (request.batch, request.heads, count, request.frame.k_len)
        found = request.query.new_zeros(shape, dtype=request.work_dtype)
    else:
        found, _ = reference.weights_and_lse(request, chosen)
    return _as_given(found, query)


def _as_given(answer: Tensor, query: Tensor) -> Tensor:
    """[batch, heads, ...] without the axes that the query came without."""
    return answer if query.ndim == 4 else answer.squeeze(1) if query.ndim == 3 else answer[0, 0]


def _row_indices(rows: int | list[int] | Tensor, request: Request) -> Tensor:
    q_len = request.frame.q_len
    indices = as_data(rows, "rows", expected=f"indices of the {q_len} queries").to(request.device)
    # An empty list says nothing of its dtype.
    whole = indices.numel() == 0 or not (indices.is_floating_point() or indices.dtype == torch.bool)
    if indices.ndim > 1 or not whole or (indices.numel() and not bool(((indices >= -q_len) & (indices < q_len)).all())):
        raise BadArgument("rows", expected=f"indices of the {q_len} queries", came=rows)
    return indices.long().reshape(-1) % max(q_len, 1)


def _is_empty(request: Request) -> bool:
    return request.query.numel() == 0 or request.frame.k_len == 0


def _nothing_to_hear(request: Request) -> tuple[Tensor, Tensor]:
    # Products over an axis of size 0 are zeros that still know their inputs, so gradients exist and are 0.
    key, value = (x.repeat_interleave(request.queries_per_key_head, dim=1) for x in (request.key, request.value))
    out = (request.query @ key.transpose(-1, -2)) @ value
    return out, torch.full(out.shape[:3], -torch.inf, dtype=request.work_dtype, device=request.device)
