"""Masks to FlexAttention: a `mask_mod` and a `BlockMask`, without evaluating every pair.

    >>> from rearview import causal
    >>> from rearview.masks.exchange import to_block_mask
    >>> to_block_mask(causal(), 300).shape
    (1, 1, 300, 300)

The way back is in `mask_mod.py` and `block_mask.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add, or_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_device
from rearview.masks.exchange.checked import checked
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask
from rearview.masks.operators import Operation
from rearview.masks.spans import Spans
from rearview.masks.tiles import FULL, PARTIAL, Tiles

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

# (batch, head, row, key) -> bool, scalars under vmap. Rows count from 0: FlexAttention knows no positions.
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def to_mask_mod(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    device: torch.device | str | None = None,
) -> MaskMod:
    """The mask as a `mask_mod(b, h, q_idx, kv_idx)`, for these sizes; its tensors, if it has any, on `device`.

    FlexAttention counts rows from 0, so the position of the queries is part of the function: make a new one when
    `q_start` changes.

    >>> from torch.nn.attention.flex_attention import create_mask
    >>> from rearview import causal
    >>> create_mask(to_mask_mod(causal(), 2, 3), 1, 1, 2, 3, device="cpu")[0, 0].int().tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    frame = Frame.of(q_len, k_len, q_start)
    checked(mask)._check(frame)
    return _lowered(mask._simplify(frame), frame, as_device(device))


def to_block_mask(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    block_size: int | tuple[int, int] = 128,
    device: torch.device | str | None = None,
    mask_mod: MaskMod | None = None,
) -> BlockMask:
    """The mask as a `BlockMask`, from its tiles: the same lists as `create_block_mask`, in memory of the tiles.

    `mask_mod` replaces the function that decides inside partial blocks; it must mean the same as the mask.

    >>> from rearview import causal, window
    >>> to_block_mask(causal() & window(128), 512).kv_num_blocks.tolist()
    [[[1, 2, 2, 2]]]
    """
    from torch.nn.attention.flex_attention import BlockMask

    frame, device = Frame.of(q_len, k_len, q_start), as_device(device)
    if frame.q_len == 0 or frame.k_len == 0:
        raise Unsupported(
            "to_block_mask", [f"a BlockMask of {frame.q_len} queries and {frame.k_len} keys has no blocks"]
        )
    if mask_mod is None:
        mask_mod = to_mask_mod(mask, frame.q_len, frame.k_len, q_start=q_start, device=device)
    sizes = block_size if isinstance(block_size, tuple) else (block_size, block_size)
    if len(sizes) != 2:
        raise BadArgument("block_size", expected="one size, or (query block, key block)", got=repr(block_size))
    q_block, k_block = (whole_number(size, "block_size", at_least=1) for size in sizes)
    kind = Tiles.of(checked(mask), frame, block=(q_block, k_block), device=device).kind
    kind = kind.expand(mask.batch or 1, mask.heads or 1, -1, -1).clone()
    # A block that reaches over the edge is never full for FlexAttention: positions that do not exist are not visible.
    if frame.q_len % q_block:
        kind[:, :, -1, :].clamp_(max=PARTIAL)
    if frame.k_len % k_block:
        kind[:, :, :, -1].clamp_(max=PARTIAL)
    return BlockMask.from_kv_blocks(
        *_listed(kind == PARTIAL),
        *_listed(kind == FULL),
        BLOCK_SIZE=(q_block, k_block),
        mask_mod=mask_mod,
        seq_lengths=(frame.q_len, frame.k_len),
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The number of blocks in each row of blocks, and their indices in order; the entries after those are not read."""
    order = blocks.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _lowered(mask: Mask, frame: Frame, device: torch.device) -> MaskMod:
    # A compiled kernel cannot move a tensor to its device, so the data are moved now, as ranges.
    if mask.has_ranges and not all(part.is_arithmetic for part in mask.walk()):
        return range_mod(mask.spans_in(frame, device))
    if isinstance(mask, Operation) and not mask.has_ranges:
        return _joined([_lowered(part, frame, device) for part in mask.parts], type(mask).operator)
    q_start, here = frame.q_start, mask.to(device)

    def by_rule(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return here.visible(b, h, q_idx + q_start, kv_idx)

    return by_rule


def _joined(mods: list[MaskMod], operator: Callable[[Tensor, Tensor], Tensor]) -> MaskMod:
    def joined(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return reduce(operator, [mod(b, h, q_idx, kv_idx) for mod in mods])

    return joined


def range_mod(spans: Spans) -> MaskMod:
    """A `mask_mod` that reads the ranges: the same code for every mask, so a new mask compiles nothing new."""
    batch, heads, rows, ranges = spans.starts.shape
    # One flat row of edges per range. An axis of size 1 serves every index, so that index is not read.
    starts, ends = (edge.permute(3, 0, 1, 2).flatten(1) for edge in (spans.starts, spans.ends))
    # A tensor of one number may have any strides, and the compiler (torch 2.13, CPU) fails on some of them.
    starts, ends = (edge.clone(memory_format=torch.contiguous_format) for edge in (starts, ends))
    strides = (rows * heads if batch > 1 else 0, rows if heads > 1 else 0, 1 if rows > 1 else 0)

    def by_ranges(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        steps = [index * step for index, step in zip((b, h, q_idx), strides, strict=True) if step]
        row = reduce(add, steps) if steps else 0
        inside = [(kv_idx >= starts[n][row]) & (kv_idx < ends[n][row]) for n in range(ranges)]
        return reduce(or_, inside)

    return by_ranges
