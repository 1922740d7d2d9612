"""The exchange: one all-to-all that brings the keys and values that a rank's queries hear, and takes gradients back.

Rows travel as bytes, keys and values of a position side by side, so an exchange is one collective for any dtype. In the
backward pass the gradients of a key come back from every rank that used it, and are added in the order of ranks, in
float32 (float64 where the keys are float64): the result does not depend on which message arrives first.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from rearview.parallel.exchange_plan import ExchangePlan
from rearview.parallel.rank_group import RankGroup


def exchanged_keys(key: Tensor, value: Tensor, plan: ExchangePlan, ranks: RankGroup) -> tuple[Tensor, Tensor]:
    """The keys and values [batch, heads, key_slots, dim] that this rank's queries hear.

    `key` and `value` [batch, heads, rows, dim] are this rank's own. Slots that an item does not use are 0.
    """
    found = _KeyExchange.apply(torch.cat([key, value], -1), plan, ranks)
    assert isinstance(found, Tensor)
    return found[..., : key.shape[-1]], found[..., key.shape[-1] :]


class _KeyExchange(torch.autograd.Function):
    """[batch, heads, rows, dim] -> [batch, heads, key_slots, dim]."""

    @staticmethod
    def forward(ctx: FunctionCtx, own: Tensor, plan: ExchangePlan, ranks: RankGroup) -> Tensor:
        ctx.plan, ctx.ranks = plan, ranks  # type: ignore[attr-defined]
        at = plan.on(own.device)
        rows = _as_rows(own, plan.items)
        arrived = all_to_all(rows[at.sent_rows], plan.sent, plan.received, ranks)
        local = rows.new_zeros(plan.items * plan.key_slots, rows.shape[1])
        local[at.own_slots] = rows[at.own_rows]
        local[at.received_slots] = arrived
        return _as_heads(local, like=own, slots=plan.key_slots, items=plan.items)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        plan: ExchangePlan = ctx.plan  # type: ignore[attr-defined]
        ranks: RankGroup = ctx.ranks  # type: ignore[attr-defined]
        at = plan.on(gradient.device)
        local = _as_rows(gradient, plan.items)
        returned = all_to_all(local[at.received_slots], plan.received, plan.sent, ranks)
        sums = torch.float64 if gradient.dtype == torch.float64 else torch.float32
        total = torch.zeros(plan.items * plan.rows, local.shape[1], dtype=sums, device=local.device)
        parts, places = returned.split(plan.sent), at.sent_rows.split(plan.sent)
        for rank, (part, place) in enumerate(zip(parts, places, strict=True)):
            # A rank needs a key once, so no row occurs twice in a part: the order of additions is that of the ranks.
            if rank == plan.rank:
                total.index_add_(0, at.own_rows, local[at.own_slots].to(sums))
            elif len(place):
                total.index_add_(0, place, part.to(sums))
        return _as_heads(total.to(gradient.dtype), like=gradient, slots=plan.rows, items=plan.items), None, None


def all_to_all(rows: Tensor, sent: list[int], received: list[int], ranks: RankGroup) -> Tensor:
    """The rows that this rank receives: `received[r]` of them from rank r, to which it sends `sent[r]` of `rows`."""
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(
        arrived.view(torch.uint8), rows.contiguous().view(torch.uint8), received, sent, group=ranks.group
    )
    return arrived


def _as_rows(x: Tensor, items: int) -> Tensor:
    """[batch, heads, time, dim] -> [items x time, numbers]: a row is a position of one item, or of all items."""
    batch, heads, time, dim = x.shape
    x = x.transpose(1, 2).reshape(items, batch // items, time, heads * dim).transpose(1, 2)
    return x.reshape(items * time, batch // items * heads * dim)


def _as_heads(rows: Tensor, *, like: Tensor, slots: int, items: int) -> Tensor:
    """The inverse of `_as_rows`: [batch, heads, slots, dim]."""
    batch, heads, _, dim = like.shape
    x = rows.view(items, slots, batch // items, heads, dim)
    return x.permute(0, 2, 3, 1, 4).reshape(batch, heads, slots, dim)
