"""attend(): masked attention, computed by one of several engines.

>>> import torch
>>> from rearview import attend, causal, window
>>> x = torch.randn(1, 2, 5, 8)
>>> attend(x, x, x, mask=causal() & window(3)).shape
torch.Size([1, 2, 5, 8])
"""

from __future__ import annotations

from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from rearview.attention import prepared
from rearview.attention.call import Call, CallOptions, ScoreOptions, shows_options
from rearview.attention.engines import ENGINES, reference
from rearview.attention.planner import read_by, resolve
from rearview.attention.sequence_shard import refuse_shard
from rearview.attention.sinks import counted_in, share_of_keys
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.data import as_data, check_readable, described, is_whole, printed


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    engine: str = ...,
    return_lse: Literal[False] = ...,
    **options: Unpack[CallOptions],
) -> Tensor: ...


@overload
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    engine: str = ...,
    return_lse: Literal[True],
    **options: Unpack[CallOptions],
) -> tuple[Tensor, Tensor]: ...


@shows_options
def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    engine: str = "auto",
    return_lse: bool = False,
    **options: Unpack[CallOptions],
) -> Tensor | tuple[Tensor, Tensor]:
    """softmax(softcap(scale x Q K^T) + bias, over the keys that the mask lets each query hear) x V.

    Args:
        query: [batch, heads, time, dim]; also [batch, time, dim] and [time, dim], for one head.
        key, value: the same; fewer heads serve equal groups of query heads (GQA). Their dims may differ.
        mask: who may be heard, by default `causal()`; `full()` means no mask.
        q_start: the position of the first query. By default the queries have the last positions of the keys, so a
            step with a cache needs no special handling.
        bias: added to the scores: a tensor that broadcasts to [batch, heads, query, key] and may require gradients, or
            `alibi(heads)`.
        scale: the factor of the scores, by default 1 / sqrt(dim).
        softcap: c in c x tanh(score / c), before the bias.
        sinks: [heads] logits, one per query head, that take part in every softmax without being keys: they take weight
            from the keys. They may require gradients.
        dropout: the share of weights that are set to 0; the others are scaled up. `generator` makes it repeatable.
        pages: `Pages(table, lengths)`: key and value are pools of blocks [blocks, key heads, block size, dim], and the
            table says which blocks hold each batch item. The queries of an item have its last positions.
        lengths: an integer tensor [batch] on the device: how many of the keys each item holds. The queries of an item
            have its last positions. The engine "decode" reads it on the device, so that a CUDA graph can be captured
            once and replayed as a cache grows; other engines read it first.
        batch_invariant: make the bits of a row of the output depend on its own query and keys alone: not on the rest of
            the batch, on the number of threads, or on how many queries are computed at once.
        engine: "auto", "native", "hopper", "decode", "flex", "sdpa", "blocks" or "reference". A named engine computes
            the call exactly or raises `Unsupported`; it never falls back. `plan` shows what "auto" chooses.
        return_lse: also return the log-sum-exp of the visible scores and of the sink, [batch, heads, time].

    A row that hears nothing is exactly 0, with a log-sum-exp of -inf and zero gradients.

    >>> import torch
    >>> q, k, v = torch.tensor([[1.0], [1.0]]), torch.zeros(2, 1), torch.tensor([[2.0], [4.0]])
    >>> attend(q, k, v).tolist()
    [[2.0], [3.0]]
    """
    kind = None
    if not torch.compiler.is_compiling():
        kind = prepared.kind_of(query, key, value, engine, return_lse, options)
        mask = options.get("mask", prepared.DEFAULT_MASK)
        if kind is not None and isinstance(mask, Mask):
            ready = prepared.plans_of(mask).get(kind)
            if ready is not None:
                lengths = options.get("lengths")
                given = () if lengths is None else (lengths,)
                answer = ready(query, key, value, options.get("sinks"), *given)
                if answer is not None:
                    # An engine returns the log-sum-exp if it was requested, and may return it otherwise.
                    return (answer[0], answer[1]) if return_lse and answer[1] is not None else answer[0]
    call = Call.of(query, key, value, return_lse=return_lse, **options)
    out, lse = run(call, engine=engine, kind=kind)
    out = _with_axes_of(out, query)
    return (out, _with_axes_of(lse, query)) if return_lse and lse is not None else out


def run(call: Call, *, engine: str = "auto", kind: prepared.Kind | None = None) -> tuple[Tensor, Tensor | None]:
    """The output [batch, heads, q_len, dim] of a call, and its log-sum-exp if `call.return_lse` is True.

    With a `kind`, what was worked out is remembered for the next call of this kind.
    """
    call = call.exchanged()
    name, _ = resolve(call, engine)
    if _is_empty(call):
        return _nothing_to_hear(call.gathered())
    own = read_by(name, call)
    answer = ENGINES[name].run(own)
    # Values that were read from the device are different in the next call.
    if kind is not None and own is call:
        plans = prepared.plans_of(call.mask)
        if kind not in plans:
            # The oldest go. Listed in one step, because another thread may add a kind meanwhile.
            for old in list(plans)[: 1 - prepared.MOST_KINDS]:
                plans.pop(old, None)
            plans[kind] = prepared.prepare(name, call)
    return answer


@shows_options
def weights(
    query: Tensor,
    key: Tensor,
    *,
    rows: int | list[int] | Tensor | None = None,
    **options: Unpack[ScoreOptions],
) -> Tensor:
    """The exact weights of chosen rows, independent of any engine: [batch, heads, rows, k_len].

    `rows` are indices of queries, all by default; negative ones count from the end. Memory is rows x k_len. For half
    precision the weights are computed and returned in float32.

    >>> import torch
    >>> x = torch.eye(3)
    >>> weights(x, x, rows=0).tolist()
    [[1.0, 0.0, 0.0]]
    """
    call = Call.of_scores(query, key, **options)
    return _with_axes_of(weights_of(call, rows), query)


def weights_of(call: Call, rows: int | list[int] | Tensor | None = None) -> Tensor:
    """The exact weights of a call before dropout, [batch, heads, rows, k_len]."""
    if call.shard is not None:
        refuse_shard("weights of attention", call.shard)
    chosen = None if rows is None else _row_indices(rows, call)
    count = call.frame.q_len if chosen is None else len(chosen)
    if _is_empty(call) or count == 0:
        shape = (call.batch, call.heads, count, call.frame.k_len)
        return call.query.new_zeros(shape, dtype=call.work_dtype)
    found, lse = reference.weights_and_lse(call, chosen)
    return found if call.sinks is None else found * share_of_keys(lse, call.sinks).unsqueeze(-1)


def _with_axes_of(answer: Tensor, query: Tensor) -> Tensor:
    """[batch, heads, ...] without the axes that the given query does not have."""
    return answer if query.ndim == 4 else answer.squeeze(1) if query.ndim == 3 else answer[0, 0]


def _row_indices(rows: int | list[int] | Tensor, call: Call) -> Tensor:
    q_len = call.frame.q_len
    expected = f"indices of the {q_len} queries"
    indices = as_data(rows, "rows", expected=expected)
    check_readable(indices, "rows", expected=expected)
    indices = indices.to(call.device)
    # An empty list has no integer dtype.
    whole = indices.numel() == 0 or is_whole(indices)
    if indices.ndim > 1 or not whole or (indices.numel() and not bool(((indices >= -q_len) & (indices < q_len)).all())):
        got = printed(indices, "rows") if whole and indices.ndim <= 1 else described(indices)
        raise BadArgument("rows", expected=expected, got=got)
    return indices.long().reshape(-1) % max(q_len, 1)


def _is_empty(call: Call) -> bool:
    return call.query.numel() == 0 or call.frame.k_len == 0


def _nothing_to_hear(call: Call) -> tuple[Tensor, Tensor | None]:
    # Products over an axis of size 0 are zeros that depend on their inputs, so gradients exist and are 0.
    key, value = (x.repeat_interleave(call.queries_per_key_head, dim=1) for x in (call.key, call.value))
    out = (call.query @ key.transpose(-1, -2)) @ value
    if call.bias_tensor is not None:
        # The sum of no values is such a zero too, also where the bias holds inf.
        out = out + call.bias_tensor[..., :0].sum()
    lse = torch.full(out.shape[:3], -torch.inf, dtype=call.work_dtype, device=call.device)
    return counted_in(call.sinks, out, lse)
