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

from rearview.attention.engines.native import call
from rearview.attention.engines.native.words import ranges_in
from rearview.masks import Frame

# slopes: of ALiBi, one a head; seed: of the dropout; mask, numbers, data: the mask in words.
OPTIONS = (
    "Tensor? slopes, Tensor? seed, str mask, SymInt[] numbers, Tensor[] data, SymInt q_start, "
    "float scale, float softcap, float dropout"
)
_library = torch.library.Library("rearview", "DEF")
_library.define(
    f"attention(Tensor query, Tensor key, Tensor value, Tensor? bias, {OPTIONS}) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "attention_backward(Tensor query, Tensor key, Tensor value, Tensor? bias, Tensor out, Tensor lse, Tensor d_out, "
    f"Tensor? d_lse, bool needs_bias, {OPTIONS}) -> (Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def attention(*arguments: Any) -> tuple[Tensor, Tensor]:
    """(query, key, value, bias, *options) -> (out, lse), through the dispatcher."""
    return torch.ops.rearview.attention(*arguments)


def attention_backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(query, key, value, bias, out, lse, d_out, d_lse, needs_bias, *options) -> their gradients."""
    return torch.ops.rearview.attention_backward(*arguments)


def _options(
    query: Tensor,
    key: Tensor,
    slopes: Tensor | None,
    seed: Tensor | None,
    mask: str,
    numbers: Sequence[int],
    data: Sequence[Tensor],
    q_start: int,
    scale: float,
    softcap: float,
    dropout: float,
) -> call.Options:
    frame = Frame(query.shape[2], key.shape[2], q_start)
    ranges = ranges_in(mask, numbers, data, frame, key.shape[1])
    slopes = None if slopes is None else slopes.float().contiguous()
    return call.Options(ranges, q_start, slopes, scale, softcap, dropout, 0 if seed is None else int(seed))


def _attention(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    # Contiguous as the graph was told, whatever the query turns out to be.
    return call.forward(query, key, value, bias, _options(query, key, *rest), contiguous=True)


def _attention_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    needs_bias: bool,
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    options = _options(query, key, *rest)
    given = (query, key, value, bias, options, out, lse, d_out, d_lse)
    grads = call.backward(*given, needs_bias=needs_bias, contiguous=True)
    # An operator returns tensors: none is an empty one.
    return *grads[:3], query.new_empty(0) if grads[3] is None else grads[3]


_library.impl("attention", _attention, "CPU")
_library.impl("attention_backward", _attention_backward, "CPU")


@torch.library.register_fake("rearview::attention", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[:3], dtype=call.SUMS[query.dtype])
    return query.new_empty(query.shape[:3] + value.shape[3:]), lse


@torch.library.register_fake("rearview::attention_backward", lib=_library)
def _(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    needs_bias = rest[4]
    grads = (each.new_empty(each.shape) for each in (query, key, value))
    return *grads, query.new_empty(0) if bias is None or not needs_bias else bias.new_empty(bias.shape)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, bias, slopes, seed, mask, numbers, data, *rest = inputs
    ctx.save_for_backward(query, key, value, bias, *output, slopes, seed, *data)
    ctx.words, ctx.rest = (mask, numbers), rest


def _pull_back(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
    query, key, value, bias, out, lse, slopes, seed, *data = ctx.saved_tensors
    needs_bias = ctx.needs_input_grad[3]
    rest = (slopes, seed, *ctx.words, data, *ctx.rest)
    grads = attention_backward(query, key, value, bias, out, lse, d_out, d_lse, needs_bias, *rest)
    # torch wants a list back for a list of tensors, and takes an empty list of numbers for one.
    nothing = (None, None, None, None if ctx.words[1] else [], [None] * len(data), None, None, None, None)
    return *grads[:3], grads[3] if needs_bias else None, *nothing


torch.library.register_autograd("rearview::attention", _pull_back, setup_context=_keep, lib=_library)
