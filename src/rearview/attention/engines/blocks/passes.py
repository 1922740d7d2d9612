"""The two passes over the strips, as an autograd function.

Shapes: N = batch x key heads, G = query heads that share a key head, Q/K = positions, D/E = dim of keys/values;
q, k, v lower case are the rows of a strip and the keys of a tile.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from rearview.attention.arguments import without_autocast
from rearview.attention.call import Call
from rearview.attention.engines.autograd import gradients_of_definition, refuse_forward_mode, vmap_over_batch
from rearview.attention.engines.blocks.schedule import strips_of
from rearview.attention.engines.blocks.tile import (
    add_bias_grad,
    dropout_of,
    gather,
    groups,
    hide,
    nothing_heard,
    scatter_add,
    tile_scores,
)


class BlockAttention(torch.autograd.Function):
    """(query, key, value, bias, call without tensors) -> (out, lse)."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, call: Call) -> tuple[Tensor, Tensor]:
        return _forward(_with_tensors(call, query, key, value, bias))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.call = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple:
        *tensors, out, lse = ctx.saved_tensors
        d_out, d_lse = grads
        if d_out is None and d_lse is None:
            return None, None, None, None, None
        d_out = torch.zeros_like(out) if d_out is None else d_out
        # Gradients that must have gradients themselves.
        if torch.is_grad_enabled():
            return *gradients_of_definition(ctx.call, tensors, d_out, d_lse, engine="blocks"), None
        call = _with_tensors(ctx.call, *tensors)
        with without_autocast(call.device):
            return *_backward(call, out, lse, d_out, d_lse, needs_bias=ctx.needs_input_grad[3]), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        refuse_forward_mode("blocks")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        *tensors, call = inputs

        def apply(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return BlockAttention.apply(query, key, value, None, call)

        return vmap_over_batch(apply, info, in_dims, tensors, mask=call.mask, engine="blocks")


def _with_tensors(call: Call, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Call:
    return replace(call, query=query, key=key, value=value, bias=call.alibi if bias is None else bias)


def _forward(call: Call) -> tuple[Tensor, Tensor]:
    query, value, dtype, heads = call.query, call.value, call.work_dtype, (call.key_heads, call.queries_per_key_head)
    q_NGQD = query.unflatten(1, heads).flatten(0, 1)
    k_NKD, v_NKE = call.key.flatten(0, 1), value.flatten(0, 1)
    out_NGQE = query.new_empty(*q_NGQD.shape[:3], value.shape[-1])
    lse_NGQ = query.new_empty(q_NGQD.shape[:3], dtype=dtype)
    tile_number = 0
    for strip in strips_of(call):
        for group in groups(strip, call.batch, *heads):
            rows = (group.n, group.of_group, strip.rows)
            q = (q_NGQD[rows].to(dtype) * call.scale).flatten(1, 2)
            top, total, acc = nothing_heard(q, value.shape[-1])
            for tile in strip.tiles:
                k, v = (gather(x[group.n], tile.keys).to(dtype) for x in (k_NKD, v_NKE))
                p, _ = tile_scores(q, k, call, group, strip, tile)
                # The finite floor keeps -inf - -inf, a row that has heard nothing so far, from being NaN.
                higher = torch.maximum(top, p.amax(-1, keepdim=True))
                p.sub_(higher).exp_()
                shrink = top.sub_(higher).exp_()
                total = total.mul_(shrink).add_(p.sum(-1, keepdim=True))
                if call.dropout:
                    p.mul_(dropout_of(p, call, tile_number))
                acc = torch.bmm(p, v) if tile is strip.tiles[0] else acc.mul_(shrink).baddbmm_(p, v)
                top, tile_number = higher, tile_number + 1
            empty = total == 0
            out_NGQE[rows] = acc.div_(total.masked_fill_(empty, 1)).view_as(out_NGQE[rows])
            lse = top.add_(total.log_()).masked_fill_(empty, -torch.inf)
            lse_NGQ[rows] = lse.view_as(lse_NGQ[rows])
    return out_NGQE.view(*query.shape[:3], -1), lse_NGQ.view(query.shape[:3])


def _backward(
    call: Call, out: Tensor, lse: Tensor, d_out: Tensor, d_lse: Tensor | None, *, needs_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    query, key, value, bias, dtype = call.query, call.key, call.value, call.bias_tensor, call.work_dtype
    heads = (call.key_heads, call.queries_per_key_head)
    q_NGQD = query.unflatten(1, heads).flatten(0, 1)
    do_NGQE = d_out.unflatten(1, heads).flatten(0, 1)
    k_NKD, v_NKE = key.flatten(0, 1), value.flatten(0, 1)
    # dS = P (dP - delta): the row sums of P dP, which are those of out x d_out, less what flows in through the lse.
    delta = (d_out.to(dtype) * out.to(dtype)).sum(-1)
    delta = delta if d_lse is None else delta - d_lse
    delta_NGQ = delta.unflatten(1, heads).flatten(0, 1)
    # A row that heard nothing has no weights: exp(score - inf) is 0 whatever the score.
    lse_NGQ = lse.masked_fill(lse == -torch.inf, torch.inf).unflatten(1, heads).flatten(0, 1)
    dq_NGQD = torch.zeros_like(q_NGQD)
    dk_NKD, dv_NKE = torch.zeros_like(k_NKD, dtype=dtype), torch.zeros_like(v_NKE, dtype=dtype)
    d_bias = torch.zeros_like(bias, dtype=dtype) if bias is not None and needs_bias else None
    tile_number = 0
    for strip in strips_of(call):
        for group in groups(strip, call.batch, *heads):
            rows = (group.n, group.of_group, strip.rows)
            q = (q_NGQD[rows].to(dtype) * call.scale).flatten(1, 2)
            do = do_NGQE[rows].to(dtype).flatten(1, 2)
            row_lse, row_delta = (x[rows].flatten(1, 2).unsqueeze(-1) for x in (lse_NGQ, delta_NGQ))
            dq = torch.zeros_like(q)
            for tile in strip.tiles:
                k, v = (gather(x[group.n], tile.keys).to(dtype) for x in (k_NKD, v_NKE))
                p, slope = tile_scores(q, k, call, group, strip, tile)
                p.sub_(row_lse).exp_()
                ds = torch.bmm(do, v.transpose(-1, -2))
                if call.dropout:
                    keep = dropout_of(p, call, tile_number)
                    ds.mul_(keep)
                    scatter_add(dv_NKE[group.n], tile.keys, torch.bmm((p * keep).transpose(-1, -2), do))
                else:
                    scatter_add(dv_NKE[group.n], tile.keys, torch.bmm(p.transpose(-1, -2), do))
                ds.sub_(row_delta).mul_(p)
                # 0 x inf is NaN: a forbidden value so large that d_out x V overflows must not be noticed either.
                hide(ds, tile, group, strip, 0.0)
                if d_bias is not None:
                    add_bias_grad(d_bias, ds, call, group, strip, tile)
                if slope is not None:
                    ds.mul_(slope)
                dq.baddbmm_(ds, k)
                scatter_add(dk_NKD[group.n], tile.keys, torch.bmm(ds.transpose(-1, -2), q))
                tile_number += 1
            dq_NGQD[rows] = dq.mul_(call.scale).view_as(dq_NGQD[rows]).to(query.dtype)
    return (
        dq_NGQD.view(query.shape),
        dk_NKD.view(key.shape).to(key.dtype),
        dv_NKE.view(value.shape).to(value.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
    )
