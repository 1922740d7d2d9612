"""Parts of a call: some of its heads, one head of one batch item, its first queries; and a call on another device.

>>> import torch
>>> from rearview.attention.call import Call
>>> x = torch.randn(1, 4, 6, 8)
>>> call = Call.of(x[:, :, 4:], x, x)
>>> of_heads(call, (1, 3)).query.shape, until(call, 5, own_keys=True).frame
(torch.Size([1, 2, 2, 8]), Frame(q_len=1, k_len=5, q_start=4))
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.masks import Frame
from rearview.masks.item import item_of
from rearview.masks.shifted import shifted


def of_heads(call: Call, heads: tuple[int, ...]) -> Call:
    """The call for these heads only. Each gets its own copy of its key head."""
    chosen, group = list(heads), call.queries_per_key_head
    key_heads = [head // group for head in heads]
    key = call.key[:, key_heads]
    return replace(
        call,
        query=call.query[:, chosen],
        key=key,
        value=key if call.value is call.key else call.value[:, key_heads],
        mask=shifted(call.mask, queries=0, keys=0, heads=heads),
        bias=_bias_of(call.bias, chosen),
        sinks=None if call.sinks is None else call.sinks[chosen],
    )


def one_head(call: Call, item: int, head: int) -> Call:
    """The call for one batch item and one head."""
    key_head = head // call.queries_per_key_head
    bias = _bias_of(call.bias, [head])
    if isinstance(bias, Tensor) and bias.shape[0] > 1:
        bias = bias[item : item + 1]
    same_items, same_heads = call.mask.batch is None, call.mask.heads is None
    return replace(
        call,
        query=call.query[item : item + 1, head : head + 1],
        key=call.key[item : item + 1, key_head : key_head + 1],
        value=call.value[item : item + 1, key_head : key_head + 1],
        mask=item_of(call.mask, batch=0 if same_items else item, head=0 if same_heads else head),
        bias=bias,
        sinks=None if call.sinks is None else call.sinks[head : head + 1],
    )


def until(call: Call, position: int, *, own_keys: bool) -> Call:
    """The call without the queries from `position` on, and with `own_keys` without the keys from there on."""
    rows, keys = position - call.frame.q_start, position if own_keys else call.frame.k_len
    bias = call.bias
    if isinstance(bias, Tensor):
        bias = bias[..., :rows, :keys] if bias.shape[-2] > 1 else bias[..., :keys]
    return replace(
        call,
        query=call.query[:, :, :rows],
        key=call.key[:, :, :keys],
        value=call.value[:, :, :keys],
        frame=Frame(rows, keys, call.frame.q_start),
        bias=bias,
    )


def on_device(call: Call, device: torch.device) -> Call:
    """The same call on another device."""
    key = call.key.to(device)
    return replace(
        call,
        query=call.query.to(device),
        key=key,
        value=key if call.value is call.key else call.value.to(device),
        mask=call.mask.to(device),
        bias=call.bias.to(device) if isinstance(call.bias, Tensor) else call.bias,
        sinks=None if call.sinks is None else call.sinks.to(device),
    )


def _bias_of(bias: Tensor | Alibi | None, heads: list[int]) -> Tensor | Alibi | None:
    if isinstance(bias, Alibi):
        return Alibi(bias.slopes[heads])
    return bias if bias is None or bias.shape[1] == 1 else bias[:, heads]
