"""The kernel as two operators of torch: what a compiled or exported graph holds, and what dispatch modes see.

>>> import torch
>>> torch.ops.rearview.attention.default.name()
'rearview::attention'

Plain eager calls do not come this way: an operator written in Python costs more than a step with a cache takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.native import kernel
from rearview.attention.engines.native.ranges import Ranges, ranges_in
from rearview.masks import Frame
from rearview.masks.encoding import encode

# slopes: of ALiBi, one a head; seed: of the dropout; mask, numbers, data: the encoded mask.
OPTIONS = (
    "Tensor? slopes, Tensor? seed, str mask, SymInt[] numbers, Tensor[] data, SymInt q_start, "
    "float scale, float softcap, float dropout, bool batch_invariant"
)
_library = torch.library.Library("rearview", "DEF")
_library.define(
    f"attention(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks, {OPTIONS}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "attention_backward(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor? sinks, Tensor out, Tensor lse, "
    f"Tensor d_out, Tensor? d_lse, bool needs_bias, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """(query, key, value, bias, sinks, *options) -> (out, lse), through the dispatcher."""
    return torch.ops.rearview.attention(*arguments)


def attention_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(query, key, value, bias, sinks, out, lse, d_out, d_lse, needs_bias, *options) -> their gradients."""
    return torch.ops.rearview.attention_backward(*arguments)


def options_of(call: Call, seed: Tensor | None) -> tuple[Any, ...]:
    """What follows the tensors with gradients in the arguments of both operators.

    >>> from rearview.attention.call import Call
    >>> x = torch.zeros(1, 2, 3, 4)
    >>> options_of(Call.of(x, x, x), None)
    (None, None, 'causal', [], [], 0, 0.5, 0.0, 0.0, False)
    """
    slopes = None if call.alibi is None else call.alibi.slopes.to("cpu")
    numbers = (call.frame.q_start, call.scale, call.softcap or 0.0, call.dropout, call.batch_invariant)
    return slopes, seed, *encode(call.mask), *numbers


def _ranges_and_terms(
    query: Tensor,
    key: Tensor,
    sinks: Tensor | None,
    slopes: Tensor | None,
    seed: Tensor | None,
    mask: str,
    numbers: Sequence[int],
    data: Sequence[Tensor],
    q_start: int,
    scale: float,
    softcap: float,
    dropout: float,
    batch_invariant: bool,
) -> tuple[Ranges, kernel.Terms]:
    frame = Frame(query.shape[2], key.shape[2], q_start)
    ranges = ranges_in(mask, numbers, data, frame, key.shape[1])
    return ranges, {
        "q_start": q_start,
        "slopes": None if slopes is None else slopes.float().contiguous(),
        "sinks": None if sinks is None else sinks.contiguous(),
        "scale": scale,
        "softcap": softcap,
        "dropout": dropout,
        "seed": 0 if seed is None else int(seed),
        "batch_invariant": batch_invariant,
    }


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    # Contiguous as the graph was told, whatever the query turns out to be.
    return kernel.forward(query, key, value, bias, *_ranges_and_terms(query, key, *rest), contiguous=True)


def _attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    sinks: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    needs_bias: bool,
    *rest: Any,
) -> tuple[Tensor, ...]:
    given = (query, key, value, bias, *_ranges_and_terms(query, key, sinks, *rest), out, lse, d_out, d_lse)
    grads = kernel.backward(*given, needs_bias=needs_bias, contiguous=True)
    # An operator returns tensors: none is an empty one.
    return tuple(query.new_empty(0) if grad is None else grad for grad in grads)


_library.impl("attention", _attention, "CPU")
_library.impl("attention_backward", _attention_backward, "CPU")


@torch.library.register_fake("rearview::attention", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=kernel.SUMS[query.dtype])
    return query.new_empty(query.shape[:3] + value.shape[3:]), lse


@torch.library.register_fake("rearview::attention_backward", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    sinks, needs_bias = rest[0], rest[5]
    wanted = (query, key, value, bias if needs_bias else None, sinks)
    return tuple(query.new_empty(0) if each is None else each.new_empty(each.shape) for each in wanted)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bias, sinks, slopes, seed, mask, numbers, data, *rest = inputs
    ctx.save_for_backward(query, key, value, bias, sinks, *output, slopes, seed, *data)
    ctx.words, ctx.rest = (mask, numbers), rest


def _pull_back(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
    query, key, value, bias, sinks, out, lse, slopes, seed, *data = ctx.saved_tensors
    needs_bias = ctx.needs_input_grad[3]
    rest = (slopes, seed, *ctx.words, data, *ctx.rest)
    grads = attention_backward(query, key, value, bias, sinks, out, lse, d_out, d_lse, needs_bias, *rest)
    # torch wants a list back for a list of tensors, and takes an empty list of numbers for one.
    nothing = (None, None, None, None if ctx.words[1] else [], [None] * len(data), None, None, None, None, None)
    return *grads[:3], grads[3] if needs_bias else None, None if sinks is None else grads[4], *nothing


torch.library.register_autograd("rearview::attention", _pull_back, setup_context=_keep, lib=_library)
