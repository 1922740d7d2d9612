"""Softmax and fused attention: a key whose score is certainly -inf has weight 0 and is not heard.

A large negative number in its place hides the key only as long as scores stay ordinary, which is a condition with the
measured margin. In a row where every key is masked by finite numbers, nothing is hidden.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> sdpa = torch.nn.functional.scaled_dot_product_attention
>>> prove(lambda x: sdpa(x, x, x, is_causal=True), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 1]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, forget, join, over, unmark


def hidden(call: OpCall, scores: Heard, weights: Tensor | None, dim: int) -> Tensor | None:
    """Which scores certainly get weight 0 in a softmax along `dim`; None where there are none."""
    gone = scores.equal_to(float("-inf"))
    low = scores.low()
    if low is None:
        return gone
    value = scores.value.float() if scores.value.dtype in (torch.float16, torch.bfloat16) else scores.value
    ordinary = ~low if gone is None else ~low & ~gone
    top = value.masked_fill(~ordinary, float("-inf")).amax(dim=dim, keepdim=True)
    margin = top - value
    # In a row without an ordinary score top is -inf; there a finite mask hides nothing.
    bound = scores.underflow
    under = low & (top > float("-inf")) & (margin >= bound)
    if weights is not None:
        under = under & (weights == 0)
    if bool(under.any()):
        call.state.condition(call, margin=margin[under].min().item(), fill=value[under].max().item(), bound=bound)
        gone = under if gone is None else gone | under
    return gone


@rule("_softmax", "softmax", "_safe_softmax", "_log_softmax", "log_softmax")
def softmax(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None or item.ndim == 0:
        return unmark(item.sets)
    dim = call["dim"] % item.ndim
    logarithm = "log" in call.name
    gone = hidden(call, item, None if logarithm else call.out, dim)
    sets = align(item.sets, item.ndim)
    if gone is None:
        return unmark(over(sets, [dim], keepdim=True))
    row = over(forget(sets, gone), [dim], keepdim=True)
    if logarithm:
        # A certain -inf stays -inf. A finite number in its place is still read: its own output hears it.
        certain = item.equal_to(float("-inf"))
        both = row | sets
        return unmark(both if certain is None else forget(both, certain))
    return unmark(forget(row, gone))


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def softmax_backward(call: OpCall) -> Tensor | None:
    gradient, output = call.args[:2]
    ndim = call.out.dim()
    dim = call["dim"] % max(ndim, 1)
    heard = unmark(join(ndim, gradient.sets, output.sets))
    return heard if heard is None or ndim == 0 else over(heard, [dim], keepdim=True)


def heads_repeated(item: Heard, heads: int) -> Heard:
    """Repeat key heads to the number of query heads, as in grouped-query attention."""
    if item.ndim < 3 or item.shape[-3] in (heads, 1):
        return item
    times = heads // item.shape[-3]
    sets = None if item.sets is None else align(item.sets, item.ndim)
    if sets is not None and sets.shape[item.ndim - 3] > 1:
        sets = sets.repeat_interleave(times, dim=item.ndim - 3)
    return Heard(item.value.repeat_interleave(times, dim=-3), sets)


@rule(
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    *("_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_attention_math_for_mps"),
    *("scaled_dot_product_attention", "_scaled_dot_product_attention_math"),
)
def attention(call: OpCall) -> list[Tensor | None]:
    """out[i] hears query i and, for every key j that is not hidden, the key, the value and the mask."""
    query = call["query"]
    heads = query.shape[-3] if query.ndim > 2 else 1
    key, value = heads_repeated(call["key"], heads), heads_repeated(call["value"], heads)
    mask = call["attn_mask"] if call["attn_mask"] is not None else call["attn_bias"]
    ndim = query.ndim
    # [.., q, 1, c] | [.., 1, k, c]: what each score heard
    rows = unmark(None if query.sets is None else align(query.sets, ndim).any(dim=-2).unsqueeze(-2))
    columns = unmark(None if key.sets is None else align(key.sets, ndim).any(dim=-2).unsqueeze(-3))
    scores = join(ndim, rows, columns, mask.sets if mask is not None else None)
    gone = masked(call, query, key, mask)
    values = unmark(None if value.sets is None else align(value.sets, ndim))
    if scores is not None and gone is not None:
        scores = forget(scores, gone)
    heard = None if scores is None else scores.any(dim=-2).unsqueeze(-2)
    if values is not None:
        if gone is None:
            mixed = values.any(dim=-3).unsqueeze(-3)
        else:
            k = gone.shape[-1]
            values = values.expand(*values.shape[:-3], k, *values.shape[-2:])
            passed = torch.matmul((~gone).float(), values.flatten(-2).float()) > 0
            mixed = passed.unflatten(-1, values.shape[-2:])
        heard = join(ndim, heard, mixed)
    if call["dropout_p"]:
        heard = join(ndim, heard, call.state.unknown(ndim))
    return outputs(call, unmark(heard))


def outputs(call: OpCall, heard: Tensor | None) -> list[Tensor | None]:
    """The output; the log-sum-exp [.., q] beside it; whatever else a kernel returns (seeds) is not about values."""
    if isinstance(call.out, Tensor):
        return [heard]
    query_ndim = call.out[0].dim()
    found = [heard]
    for out in call.out[1:]:
        if isinstance(out, Tensor):
            row = None if heard is None else heard.any(dim=-2)
            if row is not None and out.dim() != query_ndim - 1:
                row = row.reshape(-1, row.shape[-1]).any(dim=0).view(*[1] * out.dim(), -1)
            found.append(row)
    return found


def masked(call: OpCall, query: Heard, key: Heard, mask: Heard | None) -> Tensor | None:
    """[.., q, k], True where no weight can arrive."""
    q_len, k_len = query.shape[-2], key.shape[-2]
    gone = None
    if call["is_causal"]:
        # Aligned at the top left, whatever the lengths.
        gone = ~torch.ones(q_len, k_len, dtype=torch.bool, device=query.value.device).tril()
    if mask is None:
        return gone
    if mask.value.dtype is torch.bool:
        found = mask.equal_to(0)
    else:
        found = mask.equal_to(float("-inf"))
        if (low := mask.low()) is not None:
            found = join_masks(found, stand_ins(call, query, key, mask, low, gone))
    return join_masks(gone, found)


def join_masks(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return a if b is None else b if a is None else a | b


def stand_ins(call: OpCall, query: Heard, key: Heard, mask: Heard, low: Tensor, gone: Tensor | None) -> Tensor | None:
    """Keys that finite numbers in the mask hide, given the scores as they are now."""
    scale = call["scale"] if call["scale"] is not None else query.shape[-1] ** -0.5
    kind = torch.promote_types(query.value.dtype, torch.float32)
    scores = query.value.to(kind) @ key.value.to(kind).transpose(-1, -2) * scale + mask.value.to(kind)
    if gone is not None:
        scores = scores.masked_fill(gone, float("-inf"))
    sets = call.state.unknown(scores.dim())
    sets = torch.where(low.unsqueeze(-1), call.state.marked(scores.dim()), sets)
    return hidden(call, Heard(scores, sets), None, scores.dim() - 1)


@rule("_native_multi_head_attention", "_transformer_encoder_layer_fwd")
def fast_path(call: OpCall) -> list[Tensor | None]:
    """nn.MultiheadAttention and nn.TransformerEncoderLayer in eval mode: one op. In its mask True means hidden."""
    items = [call[name] for name in ("src", "query", "key", "value") if call[name] is not None]
    mask = call["mask"]
    others = [item for item in call.inputs if item is not mask and not any(item is other for other in items)]
    # [b, t, c]: what each position brings along
    own = unmark(join(2, *(None if i.sets is None else align(i.sets, 3).any(dim=-2) for i in items)))
    rest = [everything(item.sets) for item in others]
    if own is not None:
        time = items[-1].shape[1]
        keys = own.expand(own.shape[0], time, -1)
        gone = fast_path_mask(call, mask)
        if gone is None:
            heard = keys.any(dim=1, keepdim=True)
        else:
            heard = torch.matmul((~gone).float(), keys.float()) > 0
        own = heard | own if "encoder" in call.name else heard
    if mask is not None:
        rest.append(unmark(everything(mask.sets)))
    heard = join(2, own, *(None if part is None else unmark(part) for part in rest))
    found = []
    for out in tensors_of(call.out):
        found.append(None if heard is None else heard.reshape(*heard.shape[:-1], *[1] * (out.dim() - 2), -1))
    if len(found) > 1 and heard is not None:
        # The weights, [batch, (heads,) query, key], have no time axis at dimension 1.
        found[1] = heard.unsqueeze(-2) if call.out[1].dim() == 3 else heard.unsqueeze(1).unsqueeze(-2)
    return found


def tensors_of(out: Any) -> list[Tensor]:
    return [out] if isinstance(out, Tensor) else [tensor for tensor in out if isinstance(tensor, Tensor)]


def fast_path_mask(call: OpCall, mask: Heard | None) -> Tensor | None:
    """[batch or 1, query or 1, key], True where hidden for every head."""
    if mask is None:
        return None
    gone = mask.equal_to(1) if mask.value.dtype is torch.bool else mask.equal_to(float("-inf"))
    if gone is None:
        return None
    if gone.dim() == 4:
        return gone.all(dim=1)
    if gone.dim() == 2:
        # Type 0 is [query, key], type 1 is [batch, key].
        return gone.unsqueeze(0) if call["mask_type"] == 0 else gone.unsqueeze(1) if call["mask_type"] == 1 else None
    return None
