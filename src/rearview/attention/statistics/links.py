"""The strongest links of each head: which query leans on which key.

The n largest weights of a head lie in the n rows whose own largest weight is highest. So the pass over the strips keeps
one number a row, and these few rows are computed again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.request import Request

# Rows that are computed again are taken so many pairs at a time.
PAIRS_AT_ONCE = 2**22


@dataclass(frozen=True, eq=False)
class Links:
    """[batch, head, link], the strongest first. Where a head has fewer links: weight 0, positions -1."""

    weight: Tensor
    query: Tensor
    """The position of the query."""
    key: Tensor

    @classmethod
    def none(cls, batch: int, heads: int, like: Tensor) -> Links:
        empty = torch.empty(batch, heads, 0, dtype=torch.int64, device=like.device)
        return cls(like.new_empty(batch, heads, 0), empty, empty)

    def strongest(self, count: int) -> Links:
        """The first `count` after sorting; equal weights stay in the order that they are in."""
        weight, order = self.weight.sort(dim=-1, descending=True, stable=True)
        order = order[..., :count]
        return Links(weight[..., :count], self.query.gather(-1, order), self.key.gather(-1, order))

    def joined(self, *others: Links, count: int) -> Links:
        every = (self, *others)
        weight, query, key = (torch.cat([getattr(each, name) for each in every], -1) for name in FIELDS)
        return Links(weight, query, key).strongest(count)


FIELDS = ("weight", "query", "key")


def strongest_links(request: Request, sinks: Tensor | None, row_top: Tensor, count: int) -> Links:
    """`row_top` [batch, heads, q_len] is the largest weight of each row."""
    frame = request.frame
    count_rows, count_keys = min(count, frame.q_len), min(count, frame.k_len)
    if count == 0 or count_rows == 0 or count_keys == 0:
        return Links.none(request.batch, request.heads, row_top)
    # A stable sort: of equal rows the earliest, whatever the machine.
    rows = row_top.sort(dim=-1, descending=True, stable=True).indices[..., :count_rows]
    shared = request.queries_per_key_head
    key_heads_at_once = max(1, PAIRS_AT_ONCE // (shared * count_rows * frame.k_len))
    found: list[list[Links]] = []
    for item in range(request.batch):
        found.append([])
        for first in range(0, request.key_heads, key_heads_at_once):
            key_heads = slice(first, min(first + key_heads_at_once, request.key_heads))
            heads = slice(first * shared, key_heads.stop * shared)
            weights = _rows_again(request, sinks, item, key_heads, heads, rows[item, heads])
            weight, key = weights.topk(count_keys, dim=-1)
            query = (rows[item, heads] + frame.q_start).unsqueeze(-1).expand_as(key)
            hidden = weight <= 0
            flat = (weight.flatten(1), query.masked_fill(hidden, -1).flatten(1), key.masked_fill(hidden, -1).flatten(1))
            found[-1].append(Links(*(each.unsqueeze(0) for each in flat)).strongest(count))
    fields = ([torch.cat([getattr(each, name) for each in item], 1) for item in found] for name in FIELDS)
    return Links(*(torch.cat(items, 0) for items in fields))


def _rows_again(
    request: Request, sinks: Tensor | None, item: int, key_heads: slice, heads: slice, rows: Tensor
) -> Tensor:
    """The weights of `rows` [heads, n] of one item: [heads, n, k_len]."""
    frame, device, dtype = request.frame, request.device, request.work_dtype
    head = torch.arange(heads.start, heads.stop, device=device).unsqueeze(-1)
    query = request.query[item, head, rows].to(dtype) * request.scale
    key = request.key[item, key_heads].to(dtype)
    grouped = query.unflatten(0, (len(key), -1)).flatten(1, 2)
    scores = torch.bmm(grouped, key.transpose(-1, -2)).view(*rows.shape, frame.k_len)
    if request.softcap is not None:
        scores = scores.div_(request.softcap).tanh_().mul_(request.softcap)
    positions, columns = rows + frame.q_start, torch.arange(frame.k_len, device=device)
    if isinstance(request.bias, Alibi):
        distance = (positions.unsqueeze(-1) - columns).abs()
        scores -= request.bias.slopes.to(device, dtype)[heads].view(-1, 1, 1) * distance
    elif request.bias is not None:
        whole = request.bias.expand(request.batch, request.heads, frame.q_len, frame.k_len)
        scores += whole[item, head, rows]
    batch = torch.full((1, 1, 1), item, device=device)
    visible = request.mask.visible(batch, head.unsqueeze(-1), positions.unsqueeze(-1), columns)
    scores.masked_fill_(~visible, -torch.inf)
    if sinks is not None:
        column = sinks[heads].view(-1, 1, 1).expand(*rows.shape, 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : frame.k_len]
    # A row that hears nothing is 0 / 0.
    return weights.masked_fill_((scores == -torch.inf).all(-1, keepdim=True), 0)
