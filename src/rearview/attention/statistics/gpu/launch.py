"""From a request to the two kernels, and from what they wrote to sums."""

from __future__ import annotations

import math
import weakref
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
from torch import Tensor
from torch.nn import functional as F

from rearview.attention.bias import Alibi
from rearview.attention.request import Request
from rearview.attention.statistics.bins import first_position, map_shape, pooled_columns
from rearview.attention.statistics.gpu.columns import columns_kernel
from rearview.attention.statistics.gpu.rows import rows_kernel
from rearview.attention.statistics.gpu.visits import Visits, of_key_blocks, of_query_blocks
from rearview.attention.statistics.result import FIRST
from rearview.attention.statistics.sums import Sums, distance_edges
from rearview.masks import Spans

LOG2_E = math.log2(math.e)
# To Python a kernel is a function; that it is launched over a grid, only Triton knows.
ROWS_KERNEL, COLUMNS_KERNEL = cast(Any, rows_kernel), cast(Any, columns_kernel)
# Up to so many ranges a row are compared one after the other; of more, the near ones are sought.
FEW_RANGES = 4


@dataclass(frozen=True)
class Blocks:
    """Queries x keys of a tile, the warps that share it, tiles on their way, and at most so many registers a thread."""

    queries: int
    keys: int
    warps: int = 4
    stages: int = 2
    registers: int | None = None

    @property
    def options(self) -> dict[str, int | bool | None]:
        return {
            "QUERIES": self.queries,
            "KEYS": self.keys,
            "num_warps": self.warps,
            "num_stages": self.stages,
            "maxnreg": self.registers,
            # Scores are scaled and shifted in one step; said aloud, since what Triton does unasked will change.
            "enable_fp_fusion": True,
        }


@dataclass(frozen=True)
class Sizes:
    """The tiles of the two kernels."""

    rows: Blocks
    columns: Blocks

    def __post_init__(self):
        assert self.rows.queries % self.columns.queries == 0, "whole tiles of queries share the padding"


def sizes_for(dtype: torch.dtype, dim: int) -> Sizes:
    if dtype == torch.float32:
        # Products in full float32 run without tensor cores, and want small tiles.
        side = 64 if dim <= 64 else 32
        return Sizes(Blocks(side, 32), Blocks(side, 32))
    if dim <= 128:
        # Of six each, the fastest on an H200, at 8,192 tokens of dim 64 and 128.
        return Sizes(Blocks(64, 64, stages=3, registers=128), Blocks(64, 64, registers=128))
    return Sizes(Blocks(64, 64), Blocks(64, 64))


@dataclass(frozen=True, eq=False)
class Plan:
    """What follows from the mask, the frame and the width of a bin alone."""

    of_queries: Visits
    of_keys: Visits
    slots: int
    """A block of keys lies in at most so many bins of the map; 0 for no map."""
    bins: Tensor | None
    """[block of keys x slot, bin]: 1 where the slot is part of the bin."""


# Every layer of a model has the same plan; it goes when the ranges go.
_plans: weakref.WeakKeyDictionary[Spans, dict[tuple, Plan]] = weakref.WeakKeyDictionary()


def sums_by_kernels(request: Request, sinks: Tensor | None, bin_width: int, sizes: Sizes | None = None) -> Sums:
    """(request, sinks, bin_width) -> Sums; `sizes` of the tiles, where not those that suit the GPU."""
    frame, batch, heads = request.frame, request.batch, request.heads
    if 0 in (batch, frame.q_len, frame.k_len):
        return Sums.of_nothing(request, bin_width)
    sizes = sizes or sizes_for(request.query.dtype, request.query.shape[-1])
    spans = request.mask.spans_in(frame, request.device)
    plan = _plan(request, spans, bin_width, sizes)
    rows = map_shape(frame, bin_width)[0] if bin_width else 0
    edges = len(distance_edges(frame))
    q_blocks, k_blocks = -(-frame.q_len // sizes.rows.queries), -(-frame.k_len // sizes.columns.keys)
    q_padded = q_blocks * sizes.rows.queries

    def made(*shape: int) -> Tensor:
        return torch.empty(batch, heads, *shape, dtype=torch.float32, device=request.device)

    lse, entropy, top, distance = (made(frame.q_len) for _ in range(4))
    first, received = made(frame.q_len, len(FIRST)), made(frame.k_len)
    lse_bits = made(q_padded)
    histogram = made(k_blocks, edges).zero_()
    map_parts = made(rows, k_blocks, plan.slots).zero_()

    inputs = _Inputs.of(request, spans)
    # Triton launches on the current device; its interpreter reads what lies on the CPU.
    with torch.cuda.device(request.device) if request.device.type == "cuda" else nullcontext():
        ROWS_KERNEL[(q_blocks * batch * heads,)](
            inputs.query, inputs.key, inputs.bias, inputs.slopes, top if sinks is None else sinks,
            inputs.starts, inputs.ends, *_runs(plan.of_queries), lse, entropy, top, distance, first, lse_bits,
            *inputs.strides, *_run_strides(plan.of_queries),
            frame.q_len, frame.k_len, frame.q_start, q_blocks, q_padded,
            *inputs.counts, *_run_counts(plan.of_queries), inputs.scale, inputs.cap,
            **inputs.options, **sizes.rows.options, SINKS=sinks is not None,
        )  # fmt: skip
        COLUMNS_KERNEL[(k_blocks * batch * heads,)](
            inputs.query, inputs.key, inputs.bias, inputs.slopes,
            inputs.starts, inputs.ends, *_runs(plan.of_keys), lse_bits, received, histogram, map_parts,
            *inputs.strides, *_run_strides(plan.of_keys),
            frame.q_len, frame.k_len, frame.q_start, first_position(frame), k_blocks, q_padded, bin_width, rows, edges,
            *inputs.counts, *_run_counts(plan.of_keys), inputs.scale, inputs.cap,
            **inputs.options, **sizes.columns.options, SLOTS=plan.slots,
        )  # fmt: skip
    pooled = rows_heard = None
    if plan.bins is not None:
        pooled = (map_parts.flatten(-2).double() @ plan.bins).float()
        hears = (lse_bits[..., : frame.q_len] != torch.inf).float()
        before = frame.q_start - first_position(frame)
        rows_heard, _ = pooled_columns(F.pad(hears, (before, 0)), 0, bin_width)
    in_distance = histogram.sum(2, dtype=torch.float64).float()
    return Sums(lse, entropy, top, first, distance, received, in_distance, pooled, rows_heard)


def _plan(request: Request, spans: Spans, bin_width: int, sizes: Sizes) -> Plan:
    made, which = _plans.setdefault(spans, {}), (request.frame.q_start, bin_width, sizes)
    if which not in made:
        made[which] = _planned(request, bin_width, sizes)
    return made[which]


def _planned(request: Request, bin_width: int, sizes: Sizes) -> Plan:
    mask, frame, device = request.mask, request.frame, request.device
    rows, columns = sizes.rows, sizes.columns
    of_queries = of_query_blocks(mask, frame, device, queries=rows.queries, keys=rows.keys)
    of_keys = of_key_blocks(mask, frame, device, queries=columns.queries, keys=columns.keys, bin_width=bin_width)
    if not bin_width:
        return Plan(of_queries, of_keys, 0, None)
    # From the last key of one bin, so many more begin.
    slots = triton.next_power_of_2(1 + -(-(columns.keys - 1) // bin_width))
    first_bin = torch.arange(0, frame.k_len, columns.keys, device=device) // bin_width
    bin_of_slot = (first_bin.unsqueeze(-1) + torch.arange(slots, device=device)).flatten()
    bins = bin_of_slot.unsqueeze(-1) == torch.arange(map_shape(frame, bin_width)[1], device=device)
    return Plan(of_queries, of_keys, slots, bins.double())


@dataclass(frozen=True, eq=False)
class _Inputs:
    """What both kernels read."""

    query: Tensor
    key: Tensor
    bias: Tensor
    slopes: Tensor
    starts: Tensor
    ends: Tensor
    strides: tuple[int, ...]
    counts: tuple[int, ...]
    scale: float
    cap: float
    options: dict[str, object]

    @classmethod
    def of(cls, request: Request, spans: Spans) -> _Inputs:
        query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (request.query, request.key))
        # What is not there is not read: any tensor stands for it.
        bias, slopes = query, query
        if isinstance(request.bias, Alibi):
            slopes = request.bias.slopes.to(request.device, torch.float32)
        elif request.bias is not None:
            bias = request.bias.expand(request.batch, request.heads, request.frame.q_len, request.frame.k_len)
        starts, ends = (x.contiguous() for x in torch.broadcast_tensors(spans.starts, spans.ends))
        softcap, dim = request.softcap, query.shape[-1]
        options = {
            "HEADS": request.heads,
            "GROUP": request.queries_per_key_head,
            "DIM": dim,
            "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
            "RANGES": spans.most_ranges if spans.most_ranges <= FEW_RANGES else 0,
            # Not rounded to tf32.
            "PRECISION": "ieee",
            "SOFTCAP": softcap is not None,
            "ALIBI": isinstance(request.bias, Alibi),
            "BIAS": isinstance(request.bias, Tensor),
        }
        return cls(
            query, key, bias, slopes, starts, ends,
            strides=(*query.stride()[:3], *key.stride()[:3], *bias.stride(), *_broadcast_strides(starts)),
            counts=(spans.most_ranges,),
            scale=request.scale * LOG2_E if softcap is None else request.scale / softcap,
            cap=0.0 if softcap is None else softcap * LOG2_E,
            options=options,
        )  # fmt: skip


def _broadcast_strides(x: Tensor) -> tuple[int, ...]:
    """Of the first axes but the last; 0 along those that broadcast."""
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True))


def _runs(visits: Visits) -> tuple[Tensor, ...]:
    return visits.plain.starts, visits.plain.ends, visits.compared.starts, visits.compared.ends


def _run_strides(visits: Visits) -> tuple[int, ...]:
    return (*_broadcast_strides(visits.plain.starts)[:2], *_broadcast_strides(visits.compared.starts)[:2])


def _run_counts(visits: Visits) -> tuple[int, ...]:
    return visits.plain.most_ranges, visits.compared.most_ranges
