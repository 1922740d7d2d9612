"""Rows of all ranks, gathered in the order of ranks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx

from rearview.parallel.rank_group import RankGroup


def gathered(rows: Tensor, dim: int, counts: Sequence[int], ranks: RankGroup) -> Tensor:
    """`counts[r]` rows along `dim` from each rank r, one rank after the other."""
    found = _Gather.apply(rows, dim, tuple(counts), ranks)
    assert isinstance(found, Tensor)
    return found


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, dim: int, counts: tuple[int, ...], ranks: RankGroup) -> Tensor:
        ctx.dim, ctx.counts, ctx.rank = dim, counts, ranks.rank  # type: ignore[attr-defined]
        first = rows.movedim(dim, 0).contiguous()
        # Collectives of equal sizes work on every backend, so each rank sends as many rows as the largest has.
        most = max(counts)
        sent = first.new_zeros(most, *first.shape[1:])
        sent[: len(first)] = first
        every = [torch.empty_like(sent) for _ in counts]
        dist.all_gather(every, sent, group=ranks.group)
        parts = [part[:count] for part, count in zip(every, counts, strict=True)]
        return torch.cat(parts).movedim(0, dim).contiguous()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        counts, rank = ctx.counts, ctx.rank  # type: ignore[attr-defined]
        return gradient.split(counts, ctx.dim)[rank].contiguous(), None, None, None  # type: ignore[attr-defined]
