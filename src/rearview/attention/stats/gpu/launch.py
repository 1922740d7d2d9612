"""Launch the two kernels for a call, and collect their results as sums."""

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
from rearview.attention.call import Call
from rearview.attention.stats.bins import first_position, map_shape, pooled_columns
from rearview.attention.stats.gpu.columns import columns_kernel
from rearview.attention.stats.gpu.rows import rows_kernel
from rearview.attention.stats.gpu.visits import Visits, of_key_blocks, of_query_blocks
from rearview.attention.stats.links import strongest_links
from rearview.attention.stats.sums import FIRST, Sums, distance_edges
from rearview.masks import Spans

LOG2_E = math.log2(math.e)
# Type checkers see a kernel as a function; only Triton knows that it is launched over a grid.
ROWS_KERNEL, COLUMNS_KERNEL = cast(Any, rows_kernel), cast(Any, columns_kernel)
# Up to this number of ranges per row are compared one by one; with more, the relevant ones are searched.
FEW_RANGES = 4


@dataclass(frozen=True)
class TileShape:
    """Queries x keys of a tile, warps per program, pipeline stages, and the largest number of registers per thread."""

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
            # Scores are scaled and shifted in one step. Explicit, since the default of Triton will change.
            "enable_fp_fusion": True,
        }


@dataclass(frozen=True)
class KernelTiles:
    """The tiles of the two kernels."""

    rows: TileShape
    columns: TileShape

    def __post_init__(self):
        assert self.rows.queries % self.columns.queries == 0, "both kernels use the same padding of queries"


def tiles_for(dtype: torch.dtype, dim: int) -> KernelTiles:
    """The fastest tiles for a dtype and head dim."""
    if dtype == torch.float32:
        # Products in full float32 run without tensor cores, and need small tiles.
        side = 64 if dim <= 64 else 32
        return KernelTiles(TileShape(side, 32), TileShape(side, 32))
    if dim <= 128:
        # The fastest of six each on an H200, at 8,192 tokens with dim 64 and 128.
        return KernelTiles(TileShape(64, 64, stages=3, registers=128), TileShape(64, 64, registers=128))
    return KernelTiles(TileShape(64, 64), TileShape(64, 64))


@dataclass(frozen=True, eq=False)
class LaunchPlan:
    """What depends only on the mask, the frame and the bin width."""

    of_queries: Visits
    of_keys: Visits
    slots: int
    """The largest number of map bins that a block of keys touches; 0 for no map."""
    bins: Tensor | None
    """[block of keys x slot, bin]: 1 where the slot is part of the bin."""


# All layers of a model share the plan, which is dropped together with the ranges.
_plans: weakref.WeakKeyDictionary[Spans, dict[tuple[int, int, KernelTiles], LaunchPlan]] = weakref.WeakKeyDictionary()


def compute_sums(call: Call, bin_width: int, links: int, tiles: KernelTiles | None = None) -> Sums:
    """The sums of a call, with the fastest tiles unless others are given."""
    frame, batch, heads, sinks = call.frame, call.batch, call.heads, call.sinks
    if 0 in (batch, frame.q_len, frame.k_len):
        return Sums.of_nothing(call, bin_width)
    tiles = tiles or tiles_for(call.query.dtype, call.query.shape[-1])
    spans = call.mask.spans_in(frame, call.device)
    plan = _cached_plan(call, spans, bin_width, tiles)
    rows = map_shape(frame, bin_width)[0] if bin_width else 0
    edges = len(distance_edges(frame))
    q_blocks, k_blocks = -(-frame.q_len // tiles.rows.queries), -(-frame.k_len // tiles.columns.keys)
    q_padded = q_blocks * tiles.rows.queries

    def empty(*shape: int) -> Tensor:
        return torch.empty(batch, heads, *shape, dtype=torch.float32, device=call.device)

    lse, entropy, top, distance = (empty(frame.q_len) for _ in range(4))
    first, received = empty(frame.q_len, len(FIRST)), empty(frame.k_len)
    lse_bits = empty(q_padded)
    histogram = empty(k_blocks, edges).zero_()
    map_parts = empty(rows, k_blocks, plan.slots).zero_()

    inputs = _Inputs.of(call, spans)
    # Triton launches on the current device; its interpreter reads CPU tensors.
    with torch.cuda.device(call.device) if call.device.type == "cuda" else nullcontext():
        ROWS_KERNEL[(q_blocks * batch * heads,)](
            inputs.query, inputs.key, inputs.bias, inputs.slopes, top if sinks is None else sinks,
            inputs.starts, inputs.ends, *_runs(plan.of_queries), lse, entropy, top, distance, first, lse_bits,
            *inputs.strides, *_run_strides(plan.of_queries),
            frame.q_len, frame.k_len, frame.q_start, q_blocks, q_padded,
            *inputs.counts, *_run_counts(plan.of_queries), inputs.scale, inputs.cap,
            **inputs.options, **tiles.rows.options, SINKS=sinks is not None,
        )  # fmt: skip
        COLUMNS_KERNEL[(k_blocks * batch * heads,)](
            inputs.query, inputs.key, inputs.bias, inputs.slopes,
            inputs.starts, inputs.ends, *_runs(plan.of_keys), lse_bits, received, histogram, map_parts,
            *inputs.strides, *_run_strides(plan.of_keys),
            frame.q_len, frame.k_len, frame.q_start, first_position(frame), k_blocks, q_padded, bin_width, rows, edges,
            *inputs.counts, *_run_counts(plan.of_keys), inputs.scale, inputs.cap,
            **inputs.options, **tiles.columns.options, SLOTS=plan.slots,
        )  # fmt: skip
    pooled = rows_heard = None
    if plan.bins is not None:
        pooled = (map_parts.flatten(-2).double() @ plan.bins).float()
        hears = (lse_bits[..., : frame.q_len] != torch.inf).float()
        before = frame.q_start - first_position(frame)
        rows_heard, _ = pooled_columns(F.pad(hears, (before, 0)), 0, bin_width)
    return Sums(
        lse=lse,
        entropy=entropy,
        first=first,
        distance=distance,
        received=received,
        histogram=histogram.sum(2, dtype=torch.float64).float(),
        map=pooled,
        rows_heard=rows_heard,
        links=strongest_links(call, top, links),
    )


def _cached_plan(call: Call, spans: Spans, bin_width: int, tiles: KernelTiles) -> LaunchPlan:
    plans, which = _plans.setdefault(spans, {}), (call.frame.q_start, bin_width, tiles)
    if which not in plans:
        plans[which] = _new_plan(call, bin_width, tiles)
    return plans[which]


def _new_plan(call: Call, bin_width: int, tiles: KernelTiles) -> LaunchPlan:
    mask, frame, device = call.mask, call.frame, call.device
    rows, columns = tiles.rows, tiles.columns
    of_queries = of_query_blocks(mask, frame, device, queries=rows.queries, keys=rows.keys)
    of_keys = of_key_blocks(mask, frame, device, queries=columns.queries, keys=columns.keys, bin_width=bin_width)
    if not bin_width:
        return LaunchPlan(of_queries, of_keys, 0, None)
    # A block that starts at the last key of a bin touches the most bins.
    slots = triton.next_power_of_2(1 + -(-(columns.keys - 1) // bin_width))
    first_bin = torch.arange(0, frame.k_len, columns.keys, device=device) // bin_width
    bin_of_slot = (first_bin.unsqueeze(-1) + torch.arange(slots, device=device)).flatten()
    bins = bin_of_slot.unsqueeze(-1) == torch.arange(map_shape(frame, bin_width)[1], device=device)
    return LaunchPlan(of_queries, of_keys, slots, bins.double())


@dataclass(frozen=True, eq=False)
class _Inputs:
    """The arguments that both kernels read."""

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
    def of(cls, call: Call, spans: Spans) -> _Inputs:
        query, key = (x if x.stride(-1) == 1 else x.contiguous() for x in (call.query, call.key))
        # A missing tensor is never read, so any tensor can stand in for it.
        bias, slopes = query, query
        if isinstance(call.bias, Alibi):
            slopes = call.bias.slopes.to(call.device, torch.float32)
        elif call.bias is not None:
            bias = call.bias.expand(call.batch, call.heads, call.frame.q_len, call.frame.k_len)
        starts, ends = (x.contiguous() for x in torch.broadcast_tensors(spans.starts, spans.ends))
        softcap, dim = call.softcap, query.shape[-1]
        options = {
            "HEADS": call.heads,
            "GROUP": call.queries_per_key_head,
            "DIM": dim,
            "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
            "RANGES": spans.most_ranges if spans.most_ranges <= FEW_RANGES else 0,
            # No rounding to tf32.
            "PRECISION": "ieee",
            "SOFTCAP": softcap is not None,
            "ALIBI": isinstance(call.bias, Alibi),
            "BIAS": isinstance(call.bias, Tensor),
        }
        return cls(
            query, key, bias, slopes, starts, ends,
            strides=(*query.stride()[:3], *key.stride()[:3], *bias.stride(), *_broadcast_strides(starts)),
            counts=(spans.most_ranges,),
            scale=call.scale * LOG2_E if softcap is None else call.scale / softcap,
            cap=0.0 if softcap is None else softcap * LOG2_E,
            options=options,
        )  # fmt: skip


def _broadcast_strides(x: Tensor) -> tuple[int, ...]:
    """The strides of all axes but the last; 0 for axes of size 1, which broadcast."""
    return tuple(0 if size == 1 else stride for size, stride in zip(x.shape[:-1], x.stride()[:-1], strict=True))


def _runs(visits: Visits) -> tuple[Tensor, ...]:
    return visits.plain.starts, visits.plain.ends, visits.compared.starts, visits.compared.ends


def _run_strides(visits: Visits) -> tuple[int, ...]:
    return (*_broadcast_strides(visits.plain.starts)[:2], *_broadcast_strides(visits.compared.starts)[:2])


def _run_counts(visits: Visits) -> tuple[int, ...]:
    return visits.plain.most_ranges, visits.compared.most_ranges
