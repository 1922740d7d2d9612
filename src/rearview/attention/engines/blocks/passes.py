"""The two passes over the strips, as a function that autograd knows.

Shapes: N = batch x key heads, G = query heads that share a key head, Q/K = positions, D/E = dim of keys/values;
q, k, v lower case are the rows of a strip and the keys of a tile.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from rearview.attention.engines import second_order
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
from rearview.attention.engines.blocks.work import Work
from rearview.attention.engines.transforms import mapped, no_forward_mode


class BlockAttention(torch.autograd.Function):
    """(query, key, value, bias, work) -> (out, lse)."""

    @staticmethod
    def forward(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, work: Work) -> tuple[Tensor, Tensor]:
        shared = query.shape[1] // work.key_heads
        q_NGQD = query.unflatten(1, (work.key_heads, shared)).flatten(0, 1)
        k_NKD, v_NKE = key.flatten(0, 1), value.flatten(0, 1)
        out_NGQE = query.new_empty(*q_NGQD.shape[:3], value.shape[-1])
        lse_NGQ = query.new_empty(q_NGQD.shape[:3], dtype=work.dtype)
        tile_number = 0
        for strip in work.strips(query.device):
            for group in groups(strip, query.shape[0], work.key_heads, shared):
                rows = (group.n, group.of_group, strip.rows)
                q = (q_NGQD[rows].to(work.dtype) * work.scale).flatten(1, 2)
                top, total, acc = nothing_heard(q, value.shape[-1])
                for tile in strip.tiles:
                    k, v = (gather(x[group.n], tile.keys).to(work.dtype) for x in (k_NKD, v_NKE))
                    p, _ = tile_scores(q, k, bias, work, group, strip, tile, query.shape)
                    # The finite floor keeps -inf - -inf, a row that has heard nothing so far, from being NaN.
                    higher = torch.maximum(top, p.amax(-1, keepdim=True))
                    p.sub_(higher).exp_()
                    shrink = top.sub_(higher).exp_()
                    total = total.mul_(shrink).add_(p.sum(-1, keepdim=True))
                    if work.dropout:
                        p.mul_(dropout_of(p, work, tile_number))
                    acc = torch.bmm(p, v) if tile is strip.tiles[0] else acc.mul_(shrink).baddbmm_(p, v)
                    top, tile_number = higher, tile_number + 1
                empty = total == 0
                out_NGQE[rows] = acc.div_(total.masked_fill_(empty, 1)).view_as(out_NGQE[rows])
                lse = top.add_(total.log_()).masked_fill_(empty, -torch.inf)
                lse_NGQ[rows] = lse.view_as(lse_NGQ[rows])
        return out_NGQE.view(*query.shape[:3], -1), lse_NGQ.view(query.shape[:3])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.work = inputs
        ctx.save_for_backward(*tensors, *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None, d_lse: Tensor | None) -> tuple:
        query, key, value, bias, out, lse = ctx.saved_tensors
        if d_out is None and d_lse is None:
            return None, None, None, None, None
        d_out = torch.zeros_like(out) if d_out is None else d_out
        needs_bias = bias is not None and ctx.needs_input_grad[3]
        # Gradients that must have gradients themselves: the definition, which autograd can follow all the way.
        if torch.is_grad_enabled():
            given, work = (query, key, value, bias, d_out, d_lse), ctx.work
            options = {"request_of": work.request, "dropout": work.dropout, "engine": "blocks"}
            return *second_order.gradients(*given, **options), None
        with torch.autocast(query.device.type, enabled=False):
            return *_backward(ctx.work, query, key, value, bias, out, lse, d_out, d_lse, needs_bias), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> NoReturn:
        no_forward_mode("blocks")

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        *tensors, work = inputs

        def apply(query: Tensor, key: Tensor, value: Tensor) -> Any:
            return BlockAttention.apply(query, key, value, None, work)

        return mapped(apply, info, in_dims, tensors, mask=work.mask, engine="blocks")


def _backward(
    work: Work,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor | None,
    needs_bias: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    heads = (work.key_heads, query.shape[1] // work.key_heads)
    q_NGQD = query.unflatten(1, heads).flatten(0, 1)
    do_NGQE = d_out.unflatten(1, heads).flatten(0, 1)
    k_NKD, v_NKE = key.flatten(0, 1), value.flatten(0, 1)
    # dS = P (dP - delta): the row sums of P dP, which are those of out x d_out, less what flows in through the lse.
    delta = (d_out.to(work.dtype) * out.to(work.dtype)).sum(-1)
    delta = delta if d_lse is None else delta - d_lse
    delta_NGQ = delta.unflatten(1, heads).flatten(0, 1)
    # A row that heard nothing has no weights: exp(score - inf) is 0 whatever the score.
    lse_NGQ = lse.masked_fill(lse == -torch.inf, torch.inf).unflatten(1, heads).flatten(0, 1)
    dq_NGQD = torch.zeros_like(q_NGQD)
    dk_NKD, dv_NKE = torch.zeros_like(k_NKD, dtype=work.dtype), torch.zeros_like(v_NKE, dtype=work.dtype)
    d_bias = torch.zeros_like(bias, dtype=work.dtype) if bias is not None and needs_bias else None
    tile_number = 0
    for strip in work.strips(query.device):
        for group in groups(strip, query.shape[0], *heads):
            rows = (group.n, group.of_group, strip.rows)
            q = (q_NGQD[rows].to(work.dtype) * work.scale).flatten(1, 2)
            do = do_NGQE[rows].to(work.dtype).flatten(1, 2)
            row_lse, row_delta = (x[rows].flatten(1, 2).unsqueeze(-1) for x in (lse_NGQ, delta_NGQ))
            dq = torch.zeros_like(q)
            for tile in strip.tiles:
                k, v = (gather(x[group.n], tile.keys).to(work.dtype) for x in (k_NKD, v_NKE))
                p, slope = tile_scores(q, k, bias, work, group, strip, tile, query.shape)
                p.sub_(row_lse).exp_()
                ds = torch.bmm(do, v.transpose(-1, -2))
                if work.dropout:
                    keep = dropout_of(p, work, tile_number)
                    ds.mul_(keep)
                    scatter_add(dv_NKE[group.n], tile.keys, torch.bmm((p * keep).transpose(-1, -2), do))
                else:
                    scatter_add(dv_NKE[group.n], tile.keys, torch.bmm(p.transpose(-1, -2), do))
                ds.sub_(row_delta).mul_(p)
                # 0 x inf is NaN: a forbidden value so large that d_out x V overflows must not be noticed either.
                hide(ds, tile, group, strip, 0.0)
                if d_bias is not None:
                    add_bias_grad(d_bias, ds, group, strip, tile, query.shape, work.key_heads)
                if slope is not None:
                    ds.mul_(slope)
                dq.baddbmm_(ds, k)
                scatter_add(dk_NKD[group.n], tile.keys, torch.bmm(ds.transpose(-1, -2), q))
                tile_number += 1
            dq_NGQD[rows] = dq.mul_(work.scale).view_as(dq_NGQD[rows]).to(query.dtype)
    return (
        dq_NGQD.view(query.shape),
        dk_NKD.view(key.shape).to(key.dtype),
        dv_NKE.view(value.shape).to(value.dtype),
        None if d_bias is None or bias is None else d_bias.to(bias.dtype),
    )
