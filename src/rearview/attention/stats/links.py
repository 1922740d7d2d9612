"""Links: the largest weights of each head, with the positions of query and key.

The n largest weights of a head lie in the n rows with the largest maxima. So a pass only needs to keep the maximum of
each row, and these few rows are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call

# The largest number of weights that are computed again at a time.
PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Links:
    """The strongest weights, the largest first: tensors [batch, heads, links].

    Missing links have weight 0 and positions -1.
    """

    weight: Tensor
    query: Tensor
    """Position of the query."""
    key: Tensor
    """Position of the key."""

    @classmethod
    def none(cls, batch: int, heads: int, like: Tensor) -> Links:
        """No links, in the dtype and on the device of `like`."""
        empty = torch.empty(batch, heads, 0, dtype=torch.int64, device=like.device)
        return cls(like.new_empty(batch, heads, 0), empty, empty)

    def strongest(self, count: int) -> Links:
        """The `count` largest weights, in a stable order."""
        weight, order = self.weight.sort(dim=-1, descending=True, stable=True)
        order = order[..., :count]
        return Links(weight[..., :count], self.query.gather(-1, order), self.key.gather(-1, order))

    def joined(self, *others: Links, count: int) -> Links:
        """The `count` largest weights of all."""
        every = (self, *others)
        weight, query, key = (torch.cat([getattr(each, name) for each in every], -1) for name in FIELDS)
        return Links(weight, query, key).strongest(count)


FIELDS = ("weight", "query", "key")


def strongest_links(call: Call, row_top: Tensor, count: int) -> Links:
    """The `count` largest weights of each head, given the largest weight of each row, [batch, heads, q_len]."""
    frame = call.frame
    count_rows, count_keys = min(count, frame.q_len), min(count, frame.k_len)
    if count == 0 or count_rows == 0 or count_keys == 0:
        return Links.none(call.batch, call.heads, row_top)
    # A stable sort takes the first of equal rows on every machine.
    rows = row_top.sort(dim=-1, descending=True, stable=True).indices[..., :count_rows]
    shared = call.queries_per_key_head
    key_heads_at_once = max(1, PAIRS_AT_ONCE // (shared * count_rows * frame.k_len))
    found: list[list[Links]] = []
    for item in range(call.batch):
        found.append([])
        for first in range(0, call.key_heads, key_heads_at_once):
            key_heads = slice(first, min(first + key_heads_at_once, call.key_heads))
            heads = slice(first * shared, key_heads.stop * shared)
            weights = _rows_again(call, item, key_heads, heads, rows[item, heads])
            weight, key = weights.topk(count_keys, dim=-1)
            query = (rows[item, heads] + frame.q_start).unsqueeze(-1).expand_as(key)
            hidden = weight <= 0
            flat = (weight.flatten(1), query.masked_fill(hidden, -1).flatten(1), key.masked_fill(hidden, -1).flatten(1))
            found[-1].append(Links(*(each.unsqueeze(0) for each in flat)).strongest(count))
    fields = ([torch.cat([getattr(each, name) for each in item], 1) for item in found] for name in FIELDS)
    return Links(*(torch.cat(items, 0) for items in fields))


def _rows_again(call: Call, item: int, key_heads: slice, heads: slice, rows: Tensor) -> Tensor:
    """The weights of `rows` [heads, n] of one batch item: [heads, n, k_len]."""
    frame, device, dtype = call.frame, call.device, call.work_dtype
    head = torch.arange(heads.start, heads.stop, device=device).unsqueeze(-1)
    query = call.query[item, head, rows].to(dtype) * call.scale
    key = call.key[item, key_heads].to(dtype)
    grouped = query.unflatten(0, (len(key), -1)).flatten(1, 2)
    scores = torch.bmm(grouped, key.transpose(-1, -2)).view(*rows.shape, frame.k_len)
    if call.softcap is not None:
        scores = scores.div_(call.softcap).tanh_().mul_(call.softcap)
    positions, columns = rows + frame.q_start, torch.arange(frame.k_len, device=device)
    if isinstance(call.bias, Alibi):
        distance = (positions.unsqueeze(-1) - columns).abs()
        scores -= call.bias.slopes.to(device, dtype)[heads].view(-1, 1, 1) * distance
    elif call.bias is not None:
        whole = call.bias.expand(call.batch, call.heads, frame.q_len, frame.k_len)
        scores += whole[item, head, rows]
    batch = torch.full((1, 1, 1), item, device=device)
    visible = call.mask.visible(batch, head.unsqueeze(-1), positions.unsqueeze(-1), columns)
    scores.masked_fill_(~visible, -torch.inf)
    if call.sinks is not None:
        column = call.sinks[heads].view(-1, 1, 1).expand(*rows.shape, 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : frame.k_len]
    # The softmax of a row that hears nothing is NaN.
    return weights.masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
