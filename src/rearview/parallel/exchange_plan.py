"""ExchangePlan: which rows this rank sends and receives for one mask, and the mask over the keys that it then has.

The keys that the queries of this rank hear, own and received, are put in the order of their positions. A range of the
mask is then one range of local keys, so the local call is an ordinary call with a mask of renumbered ranges.

A row of the tensors that travel is one key of one batch item, or of all items where they share the mask. Every rank
works out the same plan from the mask and the layout, so no plan is sent; `agreement` compares their digests.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from rearview.masks import Frame, Mask, Spans
from rearview.masks.explicit import ExplicitRanges
from rearview.parallel.agreement import digest
from rearview.parallel.needs import Needs
from rearview.parallel.pieces import Pieces, positions_in


@dataclass(frozen=True, eq=False)
class ExchangeIndices:
    """The index tensors of a plan, on one device. `_slots` are rows of the local keys, `_rows` rows of this rank.

    A row is item x (number of rows per item) + place; without items of their own there is one.
    """

    sent_rows: Tensor
    received_slots: Tensor
    own_rows: Tensor
    own_slots: Tensor
    key_positions: Tensor


@dataclass(frozen=True, eq=False)
class ExchangePlan:
    """What rank `rank` does for one mask.

    `sent[r]` and `received[r]` count the rows that go to rank r and come from it; each item has `key_slots` local keys,
    of which the last are unused where another item needs more.
    """

    rank: int
    items: int
    rows: int
    key_slots: int
    sent: list[int]
    received: list[int]
    indices: ExchangeIndices
    mask: Mask
    # Of the layout, and of the mask over the whole sequence, which must be the same on all ranks.
    digests: tuple[int, int]
    _on_device: dict[torch.device, ExchangeIndices] = field(default_factory=dict)

    @property
    def frame(self) -> Frame:
        """The local call: query n is this rank's n-th row."""
        return Frame(self.rows, self.key_slots, 0)

    @classmethod
    def of(cls, spans: Spans, pieces: Pieces, rank: int, *, needs: Needs) -> ExchangePlan:
        """The plan of a rank for the ranges of a mask over the whole sequence; `needs` are those of all ranks."""
        parts, holder = needs.cut(pieces)
        positions = pieces.positions_of(rank)
        rows = len(positions)
        mine = parts.selected(parts.group == rank)
        from_rank = holder[parts.group == rank].repeat_interleave(mine.sizes)
        key_position, key_item = positions_in(mine.starts, mine.ends), mine.item.repeat_interleave(mine.sizes)
        count = torch.bincount(key_item, minlength=spans.batch)
        key_slots = int(count.max())
        slot = key_item * key_slots + torch.arange(len(key_item)) - (count.cumsum(0) - count)[key_item]
        # The rows that others receive from this rank, in the order of receivers; each expects items and positions in
        # order, as they are here.
        asked = parts.selected((holder == rank) & (parts.group != rank))
        sent_position, sent_item = positions_in(asked.starts, asked.ends), asked.item.repeat_interleave(asked.sizes)
        sent = torch.bincount(asked.group.repeat_interleave(asked.sizes), minlength=pieces.ranks)
        is_own = from_rank == rank
        arrival = from_rank[~is_own].sort(stable=True)
        key_positions = torch.zeros(spans.batch * key_slots, dtype=torch.long)
        key_positions[slot] = key_position
        indices = ExchangeIndices(
            sent_rows=sent_item * rows + torch.searchsorted(positions, sent_position),
            received_slots=slot[~is_own][arrival.indices],
            own_rows=key_item[is_own] * rows + torch.searchsorted(positions, key_position[is_own]),
            own_slots=slot[is_own],
            key_positions=key_positions.view(spans.batch, key_slots),
        )
        return cls(
            rank,
            spans.batch,
            rows,
            key_slots,
            sent.tolist(),
            torch.bincount(arrival.values, minlength=pieces.ranks).tolist(),
            indices,
            _renumbered(spans, positions, needs.selected(needs.group == rank), key_slots),
            (digest(pieces.length, pieces.starts, pieces.owners), digest(spans.starts, spans.ends)),
        )

    def on(self, device: torch.device) -> ExchangeIndices:
        """The index tensors on a device, copied there once."""
        if device not in self._on_device:
            at = {name: each.to(device) for name, each in vars(self.indices).items()}
            self._on_device[device] = ExchangeIndices(**at)
        return self._on_device[device]


def _renumbered(spans: Spans, positions: Tensor, needs: Needs, key_slots: int) -> Mask:
    """The mask of the queries at `positions`, over local keys: the keys of `needs`, in order, for each item."""
    starts, ends = (edge.expand(-1, -1, spans.q_len, -1)[:, :, positions].long() for edge in (spans.starts, spans.ends))
    sizes, stride = needs.sizes, needs.length + 1
    # The number of local keys before each run, counted within the item.
    before = sizes.cumsum(0) - sizes
    count = torch.zeros(spans.batch, dtype=torch.long).index_add_(0, needs.item, sizes)
    before = before - (count.cumsum(0) - count)[needs.item]
    item = torch.arange(spans.batch).view(-1, 1, 1, 1) * stride
    run = torch.searchsorted(needs.item * stride + needs.starts, (item + starts).contiguous(), right=True) - 1
    there = starts < ends
    # Every range lies within one run; where there is no range, any run will do.
    run = run.clamp(min=0)
    shift = (before - needs.starts)[run] if len(sizes) else torch.zeros_like(starts)
    local_starts = torch.where(there, starts + shift, key_slots).int()
    local_ends = torch.where(there, ends + shift, key_slots).int()
    return ExplicitRanges(local_starts, local_ends)
