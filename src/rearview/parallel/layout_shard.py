"""LayoutShard: this rank's part of a sequence while a layout is active. It turns a call on rows into a local call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.errors import Unsupported
from rearview.masks import Mask, Spans
from rearview.parallel.agreement import digest
from rearview.parallel.exchange import exchanged_keys
from rearview.parallel.exchange_plan import ExchangePlan
from rearview.parallel.rank_group import RankGroup
from rearview.parallel.workload import spans_of

if TYPE_CHECKING:
    from rearview.parallel.layout import Layout

# A model has one mask, or a few for its kinds of layers.
REMEMBERED_PLANS = 8
# ALiBi counts distances between positions, and local keys are not neighbours: it becomes a dense bias of this size.
LARGEST_BIAS = 2**30


class RecentPlans:
    """The plans for the last few masks, by their ranges and the rank."""

    def __init__(self) -> None:
        # By id; the ranges are kept so that their id is not given to others.
        self._found: dict[tuple[int, int], tuple[Spans, ExchangePlan]] = {}

    def get(self, spans: Spans, rank: int, work_out: Callable[[], ExchangePlan]) -> ExchangePlan:
        """The plan for these ranges, worked out if it is not known."""
        key = (id(spans), rank)
        found = self._found.pop(key, None) or (spans, work_out())
        self._found[key] = found
        while len(self._found) > REMEMBERED_PLANS:
            del self._found[next(iter(self._found))]
        return found[1]


class LayoutShard:
    """Implements `SequenceShard` of `rearview.attention` for one layout and one group of ranks."""

    def __init__(self, layout: Layout, ranks: RankGroup, mask: Mask | None):
        self.layout, self.ranks, self.narrowing = layout, ranks, mask
        self.exchanges = 0
        self._positions = layout.positions_of(ranks.rank)
        # By id; the mask is kept so that its id is not given to another.
        self._narrowed: dict[int, tuple[Mask, Mask]] = {}

    @property
    def length(self) -> int:
        return self.layout.length

    @property
    def rows(self) -> int:
        return len(self._positions)

    def positions_on(self, device: torch.device | str) -> Tensor:
        return self._positions.to(device)

    def narrowed(self, mask: Mask) -> Mask:
        if self.narrowing is None:
            return mask
        if id(mask) not in self._narrowed:
            if len(self._narrowed) >= REMEMBERED_PLANS:
                self._narrowed.clear()
            self._narrowed[id(mask)] = (mask, mask & self.narrowing)
        return self._narrowed[id(mask)][1]

    def exchanged(self, call: Call) -> Call:
        plan = self.plan_of(call.mask)
        # Before the exchange: a rank that raises must not leave others waiting in a later one.
        bias = self._bias(call, plan)
        self._check_agreement(call, plan)
        self.exchanges += 1
        key, value = exchanged_keys(call.key, call.value, plan, self.ranks)
        return replace(call, key=key, value=value, mask=plan.mask, frame=plan.frame, bias=bias, shard=None)

    def planned(self, call: Call) -> Call:
        plan = self.plan_of(call.mask)
        key, value = (x.new_zeros(*x.shape[:2], plan.key_slots, x.shape[3]) for x in (call.key, call.value))
        bias = self._bias(call, plan)
        return replace(call, key=key, value=value, mask=plan.mask, frame=plan.frame, bias=bias, shard=None)

    def plan_of(self, mask: Mask) -> ExchangePlan:
        """The plan of this rank for a mask over the whole sequence."""
        spans = spans_of(mask, self.length)

        def work_out() -> ExchangePlan:
            needs = self.layout.needs_of(mask)
            return ExchangePlan.of(spans, self.layout.pieces, self.ranks.rank, needs=needs)

        return self.layout.plans.get(spans, self.ranks.rank, work_out)

    def _check_agreement(self, call: Call, plan: ExchangePlan) -> None:
        key, value = call.key, call.value
        tensors = digest(key.dtype, key.shape[:2], key.shape[3], value.shape[3])
        layout, mask = plan.digests
        self.layout.agreements.check(self.ranks, key.device, layout=layout, mask=mask, tensors=tensors)

    def _bias(self, call: Call, plan: ExchangePlan) -> Tensor | None:
        """The bias of this rank's rows for local keys. A given tensor has a column for each position."""
        bias = call.bias
        if bias is None or (isinstance(bias, Tensor) and bias.shape[-1] == 1):
            return bias
        keys = plan.on(call.device).key_positions
        if isinstance(bias, Tensor):
            if plan.items == 1:
                return bias.index_select(-1, keys[0])
            shape = (plan.items, *bias.shape[1:3], -1)
            return bias.expand(shape).gather(-1, keys.view(plan.items, 1, 1, -1).expand(shape[:3] + keys.shape[1:]))
        return self._dense_alibi(bias, call, keys)

    def _dense_alibi(self, bias: Alibi, call: Call, keys: Tensor) -> Tensor:
        size = len(keys) * call.heads * self.rows * keys.shape[1] * call.work_dtype.itemsize
        if size > LARGEST_BIAS:
            raise Unsupported(
                f"alibi on a layout, for {call.heads} heads x {self.rows} queries x {keys.shape[1]} keys",
                [f"the distances between positions would take a tensor of {size / 2**30:.1f} GiB per layer"],
                advice="Use more ranks or rotary positions.",
            )
        queries = self.positions_on(call.device)
        return torch.stack([bias.tile(queries, positions, call.work_dtype) for positions in keys])
