"""The masks of a model whose sequence is spread over ranks (`rearview.parallel`).

A model makes its mask for the rows that it was given. On a layout these are this rank's rows, so only the parts that
positions decide (causal, windows, chunks) can be read from the model; they are read for the whole sequence. What the
model holds as a tensor of its rows (padding, packed documents) says nothing about the rows of other ranks: it belongs
in `layout.on(mesh, mask=...)`, and is refused here unless it adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from rearview.attention.sequence_shard import SequenceShard
from rearview.errors import Unsupported
from rearview.integrations.transformers.mask_functions import MaskFunction, MaskPlacement, as_mask
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.masks import Mask, full


def sharded_mask(function: MaskFunction, place: MaskPlacement, shard: SequenceShard, *, real: Tensor | None) -> Mask:
    """The mask of `function` for the whole sequence; `real` [batch, rows] is the padding that the model was given."""
    if (place.q_len, place.k_len, place.q_offset, place.kv_offset) != (shard.rows, shard.rows, 0, 0):
        raise Unsupported(
            "this mask on a layout",
            [
                f"expected queries and keys for the {shard.rows} rows of this rank, "
                f"got {place.q_len} queries at {place.q_offset} over {place.k_len} keys"
            ],
            advice="Decoding is not done on a layout; padding is given as layout.on(mesh, mask=padding(...)).",
        )
    rows = _Rows(shard)
    if real is not None:
        rows("padding", real)
    whole = replace(place, q_len=shard.length, k_len=shard.length, rows=rows)
    mask = as_mask(function, whole)
    if mask is None:
        raise Unsupported(
            "the mask of this model on a layout",
            [f"its mask function {getattr(function, '__name__', function)!r} is not made of known parts"],
            advice="Run the model on one device.",
        )
    return mask


def check_sharded(
    module: nn.Module,
    shard: SequenceShard | None,
    attention_mask: object,
    others: Mapping[str, object],
    *,
    ours: bool,
) -> None:
    """Raise for what an attention call of a model says about this rank's rows only, and for forgotten positions."""
    assert shard is not None
    reasons = []
    if not ours or not isinstance(attention_mask, MaskTensor):
        reasons.append('its mask does not come from attn_implementation="rearview", so it is that of this rank alone')
    reasons += [
        f"the keyword {name!r} is about this rank's rows alone"
        for name in ("cu_seq_lens_q", "cu_seq_lens_k", "indices", "block_indices")
        if isinstance(others.get(name), Tensor)
    ]
    positions = others.get("position_ids")
    if isinstance(positions, Tensor) and _were_forgotten(positions, shard):
        reasons.append("position_ids begin at 0 on every rank; pass position_ids=layout.positions.unsqueeze(0)")
    if reasons:
        raise Unsupported(f"the attention of {type(module).__name__} cannot be done exactly on a layout", reasons)


def _were_forgotten(position_ids: Tensor, shard: SequenceShard) -> bool:
    """Whether `position_ids` are the default, 0, 1, 2, ..., though this rank's rows are in the middle of a text."""
    mine = shard.positions_on(position_ids.device)
    default = torch.arange(shard.rows, device=position_ids.device)
    if position_ids.shape[-1] != shard.rows or shard.rows == 0 or torch.equal(mine, default):
        return False
    items = position_ids.reshape(-1, shard.rows)
    same = (items == default).all(1).nonzero().flatten()
    # A document may begin at the first row of this rank.
    first = mine[:1].expand(len(same))
    return len(same) > 0 and (int(mine[0]) == 0 or bool(_hears_previous(shard, same, first).any()))


def _hears_previous(shard: SequenceShard, item: Tensor, position: Tensor) -> Tensor:
    """Whether the mask of `layout.on(mask=...)` lets the query at each position hear the key before it: bool."""
    narrowing = shard.narrowed(full())
    item = item if narrowing.batch is not None else torch.zeros_like(item)
    return narrowing.visible(item, torch.zeros_like(item), position, position - 1).expand(position.shape)


class _Rows:
    """Reads tensors of this rank's rows: they must add nothing to the mask of `layout.on`."""

    def __init__(self, shard: SequenceShard):
        self.shard = shard

    def __call__(self, kind: str, data: Tensor) -> Mask:
        check = {"documents": self._documents, "padding": self._padding, "blocks": self._blocks}[kind]
        if problem := check(data):
            advice = "Say it for the whole sequence: layout.on(mesh, mask=documents(ids)) or mask=padding(lengths)."
            raise Unsupported("the mask of this model on a layout", [problem], advice=advice)
        return full()

    def _padding(self, real: Tensor) -> str:
        return "" if bool(real.bool().all()) else "attention_mask marks padding in the rows of this rank alone"

    def _blocks(self, ids: Tensor) -> str:
        return "it has blocks of positions that hear each other, such as images, for the rows of this rank alone"

    def _documents(self, ids: Tensor) -> str:
        """transformers sees a new document where `position_ids` do not rise by 1, also at a gap of the layout."""
        mine = self.shard.positions_on(ids.device)
        begins = (ids[:, 1:] != ids[:, :-1]) & (mine[1:] == mine[:-1] + 1)
        item, row = begins.nonzero(as_tuple=True)
        heard = _hears_previous(self.shard, item, mine[1:][row])
        if not bool(heard.any()):
            return ""
        where = int(mine[1:][row][heard][0])
        return f"position_ids begin a packed document at position {where}, which hears the one before it"
