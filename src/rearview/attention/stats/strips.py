"""The weights of a call, a strip of queries at a time, over the keys that any query of the strip hears.

Shapes: N = batch x key heads, G = query heads per key head, D = dim; lower case n, g, q, k are the part in a strip.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.attention.engines.blocks.schedule import Strip, Tile, TileSizes, schedule_rule, schedule_spans
from rearview.attention.engines.blocks.tile import Group, by_head, gather, groups, hide
from rearview.masks import Spans

# The largest numbers of rows per strip and of scores at a time. On a CPU small enough for its caches, and large enough
# to outweigh the cost of calls; on a GPU large enough to keep it busy (measured on two cores and on an H200).
MOST_ROWS = {"cpu": 128, "cuda": 512}
PAIRS_AT_ONCE = {"cpu": 2**20, "cuda": 2**26}
FEWEST_ROWS = 32
ALL_KEYS = 2**30
LOG2_E = math.log2(math.e)

# All layers of a model share their strips, which are dropped together with the ranges.
_schedules: weakref.WeakKeyDictionary[Spans, dict[tuple[TileSizes, torch.device], list[Strip]]] = (
    weakref.WeakKeyDictionary()
)


@dataclass(frozen=True, eq=False)
class StripWeights:
    """The weights [n, g, q, k] of the queries `rows` (indices) on the keys of `parts`, concatenated.

    The next strip overwrites the tensors.
    """

    n: slice
    of_group: slice
    rows: slice
    parts: tuple[slice, ...]
    weights: Tensor
    top: Tensor
    """[n, g, q] largest weight of each row."""
    lse: Tensor
    entropy: Tensor
    heard: Tensor
    """[n, g, q] 1 where the row hears anything, else 0."""
    mass: Tensor
    """[n, g, q] sum of each row: `heard`, less the weight of the sink."""


class Strips:
    """An iterable over the strips of a call."""

    def __init__(self, call: Call):
        self.call, self.sinks = call, call.sinks
        self.spans = call.spans
        dtype, frame = call.work_dtype, call.frame
        self.alibi = call.bias if isinstance(call.bias, Alibi) else None
        self.bias = call.bias if isinstance(call.bias, Tensor) else None
        self.grouped = (call.key_heads, call.queries_per_key_head)
        self.q_NGQD = call.query.unflatten(1, self.grouped).flatten(0, 1)
        self.k_NKD = call.key.to(dtype).flatten(0, 1)
        if self.bias is not None:
            whole = (call.batch, call.heads, frame.q_len, frame.k_len)
            self.bias = self.bias.expand(whole).unflatten(1, self.grouped)
        # Rows that hear nothing need care, since their softmax is 0 / 0. Most masks have none.
        self.some_row_empty = self.spans is None or self.bias is not None or self.spans.some_row_empty
        kind = "cuda" if call.device.type == "cuda" else "cpu"
        self.most_rows, self.pairs_at_once = MOST_ROWS[kind], PAIRS_AT_ONCE[kind]
        # All strips share two buffers: new memory would cost page faults.
        most_rows = call.queries_per_key_head * min(self.rows_per_strip, frame.q_len)
        one, every = most_rows * frame.k_len, call.batch * call.key_heads * most_rows * frame.k_len
        room = min(every, max(one, self.pairs_at_once))
        self._scores, self._weights = (torch.empty(room, dtype=dtype, device=call.device) for _ in range(2))

    @property
    def rows_per_strip(self) -> int:
        keys = max(1, self.call.frame.k_len * self.call.queries_per_key_head)
        return max(FEWEST_ROWS, min(self.most_rows, self.pairs_at_once // keys))

    def __iter__(self) -> Iterator[StripWeights]:
        for strip in self._schedule():
            if not strip.tiles:
                continue
            (tile,) = strip.tiles
            width = sum(part.stop - part.start for part in tile.keys)
            for group in groups(strip, self.call.batch, *self.grouped):
                height = (group.of_group.stop - group.of_group.start) * (strip.rows.stop - strip.rows.start)
                for part in self._portions(group, max(1, self.pairs_at_once // (height * width))):
                    yield self._strip(strip, tile, part, width)

    def _schedule(self) -> Iterable[Strip]:
        call, sizes = self.call, TileSizes(self.rows_per_strip, ALL_KEYS)
        if self.spans is None:
            return schedule_rule(call.mask, call.frame, sizes, call.device)
        made = _schedules.setdefault(self.spans, {})
        if (sizes, call.device) not in made:
            made[sizes, call.device] = schedule_spans(self.spans, sizes, call.device)
        return made[sizes, call.device]

    def _portions(self, group: Group, most: int) -> Iterator[Group]:
        """The group in portions of at most `most` (at least one) of N: whole items, or key heads of one item."""
        items, key_heads = (part.stop - part.start for part in (group.items, group.key_heads))
        if items * key_heads <= most:
            yield group
            return
        item_step, head_step = _even_step(items, most // key_heads), _even_step(key_heads, most)
        for item in range(group.items.start, group.items.stop, item_step):
            items_here = slice(item, min(item + item_step, group.items.stop))
            for head in range(group.key_heads.start, group.key_heads.stop, head_step):
                heads_here = slice(head, min(head + head_step, group.key_heads.stop))
                first = item * self.call.key_heads + head
                count = (items_here.stop - item) * (heads_here.stop - head)
                yield Group(items_here, heads_here, group.of_group, slice(first, first + count))

    def _strip(self, strip: Strip, tile: Tile, group: Group, width: int) -> StripWeights:
        q = self.q_NGQD[group.n, group.of_group, strip.rows]
        shape = (q.shape[0], q.shape[1] * q.shape[2], width)
        scores, weights = (buffer[: math.prod(shape)].view(shape) for buffer in (self._scores, self._weights))
        self._fill(scores, q, strip, tile, group)
        top = scores.amax(-1, keepdim=True)
        heard = torch.ones_like(top)
        if self.some_row_empty:
            # With a maximum of 0 instead of -inf, the weights of a row that hears nothing are 2^-inf = 0, not NaN.
            heard = (top != -torch.inf).to(top.dtype)
            top.masked_fill_(heard == 0, 0)
        torch.exp2(scores.sub_(top), out=weights)
        total = weights.sum(-1, keepdim=True)
        total.add_(1 - heard)
        log_total = total.log()
        lse = (top / LOG2_E + log_total).masked_fill_(heard == 0, -torch.inf)
        mass = heard if self.sinks is None else self._left_by_sinks(lse, group, q.shape)
        share = mass / total
        weights.mul_(share)
        # -sum of w log w, where log w = score - top - log total + log mass. 0 x -inf is NaN, so hidden scores are
        # clamped.
        hidden = [piece.columns for piece in tile.pieces] if self.bias is None else [slice(None)]
        for columns in hidden:
            scores[..., columns].clamp_(min=torch.finfo(scores.dtype).min)
        below_top = scores.mul_(weights).sum(-1, keepdim=True) / LOG2_E
        entropy = (mass * log_total - below_top - torch.xlogy(mass, mass)).clamp_(min=0)
        if self.sinks is not None:
            # The keys have the share `mass` of exp(lse). A row that hears no key keeps -inf for now.
            lse = lse - mass.log().masked_fill_(mass == 0, 0)
        # The weight of the largest score is 2^0 x share.
        row = (x.view(q.shape[:3]) for x in (share, lse, entropy, heard, mass))
        return StripWeights(group.n, group.of_group, strip.rows, tile.keys, weights.view(*q.shape[:3], width), *row)

    def _fill(self, scores: Tensor, q: Tensor, strip: Strip, tile: Tile, group: Group) -> None:
        """Fill `scores` with softcap(scale x Q K^T) + bias, and -inf at hidden keys, in units of log 2.

        exp2 takes a third of the time of exp, and the conversion is part of other factors.
        """
        softcap, scale = self.call.softcap, self.call.scale
        q = q.to(scores.dtype) * (scale * LOG2_E if softcap is None else scale)
        torch.bmm(q.flatten(1, 2), gather(self.k_NKD[group.n], tile.keys).transpose(-1, -2), out=scores)
        if softcap is not None:
            scores.div_(softcap).tanh_().mul_(softcap * LOG2_E)
        self._add_bias(by_head(scores, group, strip), group, strip, tile)
        hide(scores, tile, group, strip, -torch.inf)

    def _add_bias(self, scores: Tensor, group: Group, strip: Strip, tile: Tile) -> None:
        if self.bias is not None:
            rows = self.bias[group.items, group.key_heads, group.of_group, strip.rows]
            scores.add_(torch.cat([rows[..., part] for part in tile.keys], dim=-1), alpha=LOG2_E)
        elif self.alibi is not None:
            device = scores.device
            rows = torch.arange(strip.rows.start, strip.rows.stop, device=device) + self.call.frame.q_start
            keys = torch.cat([torch.arange(part.start, part.stop, device=device) for part in tile.keys])
            penalty = self.alibi.tile(rows, keys, scores.dtype).unflatten(0, self.grouped)
            scores.add_(penalty[group.key_heads, group.of_group], alpha=LOG2_E)

    def _left_by_sinks(self, lse: Tensor, group: Group, shape: torch.Size) -> Tensor:
        """The share of the keys, exp(lse) / (exp(lse) + exp(sink)); 0 where nothing is heard."""
        assert self.sinks is not None
        n, g, q = shape[:3]
        sinks = self.sinks.view(self.grouped)[group.key_heads, group.of_group]
        sink = sinks.repeat(n // len(sinks), 1).view(n, g, 1).expand(n, g, q).reshape(n, g * q, 1)
        return torch.sigmoid(lse - sink).masked_fill_(lse == -torch.inf, 0)


def _even_step(total: int, most: int) -> int:
    """The size of nearly equal portions of at most `most`: 8 in portions of at most 7 are 4 and 4.

    >>> _even_step(8, 7), _even_step(8, 3), _even_step(8, 0)
    (4, 3, 1)
    """
    return -(-total // -(-total // max(1, most)))
