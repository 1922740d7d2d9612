"""Decoding of calls of one kind: the kernels with their constants, made once; then launches with little host time.

`Decoding.of(call)` reads everything that may be decided before the tensors are there. For one query it serves any
number of keys, since every step of a generation has another.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast

import torch
import triton  # pyright: ignore[reportMissingImports]
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.decode.kernel import combine_kernel, split_kernel
from rearview.attention.engines.decode.ranges import RangeTable, table_for
from rearview.attention.engines.raw_launch import RawKernel, are_aligned
from rearview.attention.pages import Pages
from rearview.masks import Frame, Mask

LOG2_E = math.log2(math.e)
# Keys of a chunk of batch-invariant sums: the same for every call, since the order of the sums depends on it.
CHUNK_KEYS = 512
FEWEST_ROWS, MOST_ROWS = 16, 64
# The bytes of shared memory that the interpreter is said to have, and its processors.
INTERPRETED = (100_000, 4)


@dataclass(frozen=True)
class KeyTile:
    """Keys per tile, warps per program, and tiles that are loaded ahead; and programs per multiprocessor."""

    keys: int
    warps: int
    stages: int
    programs: int = 2


def tile_for(call: Call, shared_memory: int, processors: int) -> KeyTile:
    """The fastest of eighteen on an H200, as deep as the shared memory allows (`python -m bench gpu`).

    It does not depend on the number of keys, so a step has the same bits in a cache of any capacity.
    """
    itemsize = call.query.dtype.itemsize
    widest = max(16, triton.next_power_of_2(max(call.query.shape[3], call.value.shape[3])))

    def fitting(tile: KeyTile) -> KeyTile:
        room = shared_memory // (2 * tile.keys * widest * itemsize)
        return replace(tile, stages=max(1, min(tile.stages, room)))

    if itemsize != 2 or widest > 128:
        return fitting(KeyTile(32, 4, 2))
    if call.batch_invariant:
        return fitting(KeyTile(64, 4, 3))
    if call.batch * call.key_heads < 2 * processors:
        wide = KeyTile(128, 8 if call.queries_per_key_head == 1 else 4, 3, programs=1)
        # One tile in use and two on the way; GPUs with less shared memory take smaller tiles.
        if fitting(wide) == wide:
            return wide
    return fitting(KeyTile(64, 4, 4))


@cache
def resources(device: torch.device) -> tuple[int, int]:
    """The shared memory of a program in bytes, and the number of multiprocessors."""
    if device.type != "cuda":
        return INTERPRETED
    properties = torch.cuda.get_device_properties(device)
    return properties.shared_memory_per_block_optin, properties.multi_processor_count


@dataclass(frozen=True, eq=False)
class Step:
    """What `asked` decides: the splits, the ranges, the numbers of both kernels, and the work space.

    The work space is one allocation: the sums of values (`width`), the totals, and a log-sum-exp that is not returned.
    """

    asked: tuple[int, bool, int, tuple[int, ...]]
    # None where `numbers` hold the only range.
    starts: Tensor | None
    ends: Tensor | None
    kernel: RawKernel
    direct: bool
    splits: int
    width: int
    lse_place: int
    work_size: int
    numbers: tuple[float, ...]
    joined: tuple[int, ...]


class Decoding:
    """A function of query, key, value, sinks and lengths for calls that differ in nothing else."""

    def __init__(self, call: Call, tile: KeyTile | None = None):
        query, key, value, self.device = call.query, call.key, call.value, call.device
        # Lengths are read by the kernel: it needs the mask as it is for any of them.
        self.mask: Mask = call.mask
        self.q_len = call.frame.q_len
        # None where the queries stand at the last positions of the keys.
        self.q_start = None if call.frame.q_start == call.frame.k_len - self.q_len else call.frame.q_start
        self.batch, self.heads, self.key_heads = call.batch, call.heads, call.key_heads
        self.value_dim, self.return_lse = value.shape[3], call.return_lse
        dim, group = query.shape[3], call.queries_per_key_head
        shared_memory, processors = resources(call.device)
        self.tile = tile or tile_for(call, shared_memory, processors)
        self.invariant = call.batch_invariant
        rows = self.q_len * group
        self.rows = FEWEST_ROWS if self.invariant else min(MOST_ROWS, max(FEWEST_ROWS, triton.next_power_of_2(rows)))
        self.blocks = -(-rows // self.rows)
        self.block_value = max(16, triton.next_power_of_2(self.value_dim))
        # Programs of one split, and the most splits that there are.
        self.owners = self.batch * self.key_heads * self.blocks
        self.most_splits = max(1, self.tile.programs * processors // max(1, self.owners))
        softcap, alibi = call.softcap, call.alibi
        self.slopes = None if alibi is None else alibi.slopes.to(call.device, torch.float32).contiguous()
        # `scale` and `cap` are in units of log 2.
        scale = call.scale * LOG2_E if softcap is None else call.scale / softcap
        self.factors = (scale, 0.0 if softcap is None else softcap * LOG2_E)
        # All rows of a tile hear the same keys.
        self.same_rows = self.q_len == 1 and call.mask.heads is None
        self.strides = (*query.stride()[:3], *key.stride()[:3], *value.stride()[:3])
        self.common: dict[str, Any] = {
            "GROUP": group, "VALUE_DIM": self.value_dim, "BLOCK_VALUE": self.block_value, "ROWS": self.rows,
            "SINKS": call.sinks is not None,
            # Scores are scaled and shifted in one step. Explicit, since the default of Triton will change.
            "enable_fp_fusion": True,
        }  # fmt: skip
        self.constants: dict[str, Any] = {
            **self.common,
            "KEY_HEADS": self.key_heads, "DIM": dim, "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
            "KEYS": self.tile.keys, "STAGES": self.tile.stages, "SAME_ROWS": self.same_rows,
            "PAGE": 0 if call.pages is None else key.shape[2],
            "CHUNK": CHUNK_KEYS // self.tile.keys if self.invariant else 0,
            # No rounding to tf32.
            "PRECISION": "ieee", "SOFTCAP": softcap is not None, "ALIBI": self.slopes is not None,
            "BIAS": call.bias_tensor is not None, "num_stages": self.tile.stages,
            "num_warps": self.tile.warps if self.rows < MOST_ROWS else 8,
        }  # fmt: skip
        self.lines = self.batch * self.heads * self.q_len
        self.answer_shape = (self.batch, self.heads, self.q_len, self.value_dim)
        self.kernels: dict[tuple[bool, ...], RawKernel] = {}
        self.join = self._combine_kernel()
        self._step: Step | None = None
        # The last table of ranges, and what it was made for.
        self._table: tuple[Frame, bool, RangeTable] | None = None

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None = None,
        lengths: Tensor | None = None,
        bias: Tensor | None = None,
        pages: Pages | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        k_len = key.shape[2] if pages is None else pages.k_len
        blocks, table_item = query, 0
        bias_strides: tuple[int, ...] = (0, 0, 0, 0)
        if pages is not None:
            blocks, counts = pages.on(self.device)
            table_item = blocks.stride(0)
            lengths = lengths if pages.is_even else counts
        if bias is not None:
            bias = bias.expand(self.batch, self.heads, self.q_len, k_len)
            bias_strides = bias.stride()
        # The layers of a model ask with the same number of keys one after another.
        asked, step = (k_len, lengths is None, table_item, bias_strides), self._step
        if step is None or step.asked != asked:
            step = self._step = self._step_for(*asked)
        out = query.new_empty(self.answer_shape)
        work = torch.empty(step.work_size, dtype=torch.float32, device=self.device)
        lse = None
        if self.return_lse:
            lse = torch.empty(self.answer_shape[:3], dtype=torch.float32, device=self.device)
        # Tensors that are missing are never read; the query stands in for them.
        inputs = (
            query, key, value, query if bias is None else bias, query if self.slopes is None else self.slopes,
            query if sinks is None else sinks, query if step.starts is None else step.starts,
            query if step.ends is None else step.ends, query if lengths is None else lengths, blocks,
        )  # fmt: skip
        device, kernel, width = self.device.index or 0, step.kernel, step.width
        split_run, join_run = kernel.ready_on(device), self.join.ready_on(device)
        addresses = [tensor.data_ptr() for tensor in inputs]
        if split_run and (step.direct or join_run) and are_aligned(addresses) and torch._C._cuda_getDevice() == device:
            # The same without views of the work space, which take as long as a launch.
            stream, at, out_at = torch._C._cuda_getCurrentRawStream(device), work.data_ptr(), out.data_ptr()
            lse_at = at + 4 * step.lse_place if lse is None else lse.data_ptr()
            split_run(
                step.splits, self.owners, stream, *addresses, at, at + 4 * width, out_at, lse_at, *step.numbers
            )  # fmt: skip
            if not step.direct and join_run:
                join_run(self.lines, 1, stream, at, at + 4 * width, addresses[5], out_at, lse_at, *step.joined)
            return out, lse
        partial, sums, own_lse = work, work[width:], work[step.lse_place :] if lse is None else lse
        kernel((step.splits, self.owners), (*inputs, partial, sums, out, own_lse), step.numbers, device)
        if not step.direct:
            self.join((self.lines, 1), (partial, sums, inputs[5], out, own_lse), step.joined, device)
        return out, lse

    def _step_for(self, k_len: int, without_lengths: bool, table_item: int, bias_strides: tuple[int, ...]) -> Step:
        """What follows from the number of keys, before the tensors are looked at."""
        q_len, q_start = self.q_len, k_len - self.q_len if self.q_start is None else self.q_start
        frame = Frame(q_len, k_len, q_start)
        self.mask._check(frame)
        # What the mask says, as two numbers where that is enough.
        only = self.mask.one_range(frame) if self.same_rows and without_lengths else None
        if only is None:
            ranges = self._ranges(frame, every_position=not without_lengths)
            about = (*ranges.strides, table_item, q_len, k_len, q_start, ranges.first_row, ranges.ranges, 0, 0)
            starts, ends, single = ranges.starts, ranges.ends, ranges.ranges == 1
            # As in a graph, which does not know the number of keys: the same splits, and so the same bits.
            tiles = self.most_splits
        else:
            starts = ends = None
            about, single = (0, 0, 0, table_item, q_len, k_len, q_start, -q_start, 1, *only), True
            tiles = (only[1] - 1) // self.tile.keys - only[0] // self.tile.keys + 1
        splits = max(1, -(-k_len // CHUNK_KEYS)) if self.invariant else max(1, min(tiles, self.most_splits))
        direct = splits == 1 and not self.invariant
        places = 0 if direct else self.owners * splits * self.rows
        which = (only is not None, single, not without_lengths, direct)
        return Step(
            asked=(k_len, without_lengths, table_item, bias_strides), starts=starts, ends=ends,
            kernel=self.kernels.get(which) or self._split_kernel(*which), direct=direct, splits=splits,
            width=places * self.block_value, lse_place=places * (self.block_value + 2),
            work_size=places * (self.block_value + 2) + self.lines,
            numbers=(*self.strides, *bias_strides, *about, self.blocks, splits, *self.factors),
            joined=(q_len, self.blocks, splits),
        )  # fmt: skip

    def _ranges(self, frame: Frame, *, every_position: bool) -> RangeTable:
        """The table for a frame. Steps of a growing cache mostly find the one that the step before has used."""
        if self._table is not None:
            made_for, had_every, table = self._table
            grows = table.serves_positions >= max(frame.q_end, frame.k_len) and frame.q_start >= 0
            if had_every == every_position and (made_for == frame or (grows and not every_position)):
                return table
        table = table_for(self.mask, frame, self.device, every_position=every_position)
        self._table = (frame, every_position, table)
        return table

    def _split_kernel(self, one_range: bool, single: bool, lengths: bool, direct: bool) -> RawKernel:
        chosen = {"ONE_RANGE": one_range, "SINGLE": single, "LENGTHS": lengths, "DIRECT": direct}
        made = RawKernel(cast(Any, split_kernel), **self.constants, **chosen)
        self.kernels[one_range, single, lengths, direct] = made
        return made

    def _combine_kernel(self) -> RawKernel:
        # Sums over as many splits as there may be: with fewer of them the bits are the same, so that a step has the
        # same bits in a graph, which does not know how many keys there will be.
        most = 1 if self.invariant else triton.next_power_of_2(self.most_splits)
        chosen = {"HEADS": self.heads, "MOST_SPLITS": most, "IN_ORDER": self.invariant}
        return RawKernel(cast(Any, combine_kernel), **self.common, **chosen, num_warps=4 if most > 8 else 2)
