"""Masks from FlexAttention's `BlockMask`: its block lists, and its mask_mod inside partial blocks.

>>> from rearview import causal
>>> from rearview.masks.exchange import from_block_mask, to_block_mask
>>> from_block_mask(to_block_mask(causal(), 200)).equals(causal(), 200)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.exchange.flex import MaskMod
from rearview.masks.exchange.mask_mod import evaluated
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.tiles import FULL, PARTIAL
from rearview.masks.unstructured import Where

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


@family()
class BlockRule(Where):
    """The rule of a BlockMask, for the queries and keys that it was made for."""

    frame: Frame

    def _check(self, frame: Frame) -> None:
        own = self.frame
        if frame.q_start < own.q_start or frame.q_end > own.q_end or frame.k_len > own.k_len:
            raise BadArgument(
                "from_block_mask(block_mask)",
                expected=f"queries at {frame.q_start}..{frame.q_end - 1} over {frame.k_len} keys",
                got=f"a BlockMask for queries at {own.q_start}..{own.q_end - 1} over {own.k_len} keys",
                advice="A BlockMask covers its own size only; q_start gives the position of its first row.",
            )

    def __repr__(self) -> str:
        return f"from_block_mask(<{self.frame.q_len} x {self.frame.k_len}>)"


def from_block_mask(
    block_mask: BlockMask, *, batch: int | None = None, heads: int | None = None, q_start: int | None = None
) -> Mask:
    """A mask with exactly the meaning of a `BlockMask`: full blocks, partial blocks by its mask_mod, no others.

    Its rows are at the last positions of its keys unless `q_start` says otherwise. Lists of one batch item or
    head serve all of them; if the mask_mod reads that index, declare its number: `batch=4`.

    >>> from torch.nn.attention.flex_attention import create_block_mask
    >>> made = create_block_mask(lambda b, h, i, j: i >= j, 1, 1, 3, 3, device="cpu", BLOCK_SIZE=2)
    >>> from_block_mask(made).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    """
    if not hasattr(block_mask, "kv_num_blocks"):
        got = type(block_mask).__name__
        raise BadArgument("from_block_mask(block_mask)", expected="a FlexAttention BlockMask", got=got)
    q_len, k_len = block_mask.seq_lengths
    frame = Frame.of(q_len, k_len, q_start)
    q_block, k_block = block_mask.BLOCK_SIZE
    kind = _kinds(block_mask)
    mask_mod = _mod_for_partial_blocks(block_mask, kind)
    batch, heads = _size(kind.shape[0], batch, "batch"), _size(kind.shape[1], heads, "heads")
    by_item, by_head = kind.shape[0] > 1, kind.shape[1] > 1

    def rule(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        row, key = (i - frame.q_start).clamp(0, q_len - 1), j.clamp(0, k_len - 1)
        here = kind.to(j.device)[b if by_item else 0, h if by_head else 0, row // q_block, key // k_block]
        if mask_mod is None:
            return here == FULL
        return (here == FULL) | ((here == PARTIAL) & evaluated(mask_mod, b, h, row, key))

    return BlockRule(rule, True, batch, heads, frame)


def _kinds(block_mask: BlockMask) -> Tensor:
    """The block lists as int8 [batch, head, query tile, key tile]: 0 skipped, 1 partial, 2 full."""
    (q_len, k_len), (q_block, k_block) = block_mask.seq_lengths, block_mask.BLOCK_SIZE
    rows, columns = -(-q_len // q_block), -(-k_len // k_block)
    lists = [
        (block_mask.kv_num_blocks, block_mask.kv_indices, PARTIAL),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices, FULL),
    ]
    kind = torch.zeros(1, 1, rows, columns, dtype=torch.int8, device=block_mask.kv_indices.device)
    for counts, indices, name in lists:
        if counts is None or indices is None:
            continue
        if indices.shape[-2] != rows:
            raise Unsupported(
                "from_block_mask(block_mask)",
                [f"it was sliced: it has {indices.shape[-2]} of the {rows} rows of blocks for its {q_len} queries"],
                advice="Convert the whole BlockMask, and choose queries with q_start when you use the mask.",
            )
        listed = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
        # Entries after the listed blocks mean nothing; they go to an extra column, which is cut off.
        place = torch.where(listed, indices, columns).long()
        grid = torch.zeros(*place.shape[:-1], columns + 1, dtype=torch.int8, device=indices.device)
        grid = grid.scatter_(-1, place, name)[..., :columns]
        kind = torch.maximum(kind, grid.view((1,) * (4 - grid.ndim) + grid.shape))
    return kind


def _mod_for_partial_blocks(block_mask: BlockMask, kind: Tensor) -> MaskMod | None:
    if not bool((kind == PARTIAL).any()):
        return None
    try:
        block_mask.mask_mod(*torch.zeros(4, dtype=torch.long, device=kind.device).unbind())
    except RuntimeError as error:
        # Slicing replaces the mask_mod by a function that raises: it no longer knows its rows and items.
        raise Unsupported(
            "from_block_mask(block_mask)",
            [f"it has partial blocks and its mask_mod raises: {str(error).split('. ')[0]}"],
            advice="Set block_mask.mask_mod to a function that fits the slice, or convert the whole BlockMask.",
        ) from error
    return block_mask.mask_mod


def _size(listed: int, declared: int | None, axis: str) -> int | None:
    if listed > 1 and declared not in (None, listed):
        raise BadArgument(axis, expected=f"{listed}, as in the block lists", got=declared)
    return listed if listed > 1 else None if declared is None else whole_number(declared, axis, at_least=1)
