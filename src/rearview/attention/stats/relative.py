"""Links against uniform attention: the pairs whose weight is the largest multiple of an equal share.

    >>> import torch
    >>> from rearview import causal
    >>> q, k = torch.zeros(1, 1, 4, 8), torch.zeros(1, 1, 4, 8)
    >>> q[..., 3, 0], k[..., 1, 0] = 8, 1      # the last query prefers key 1
    >>> links, times = relative_links(Call.of_scores(q, k, mask=causal()), 1)
    >>> links.query.item(), links.key.item(), round(links.weight.item(), 2), round(times.item(), 2)
    (3, 1, 0.85, 3.4)

A query that hears n keys gives each of them 1/n if it has no preference, so the measure is weight x n. The largest
weights, which `statistics` keeps, favour queries that hear few keys; this measure needs all weights, and so a second
pass over them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.stats.links import PAIRS_AT_ONCE, Links
from rearview.attention.stats.tile import tile_of


@torch.no_grad()
def relative_links(call: Call, count: int) -> tuple[Links, Tensor]:
    """The `count` links of each head with the largest weight x number of keys heard; and that product.

    The first has the largest product; of equal ones the first query, then the first key, comes first. Missing links
    have weight 0 and positions -1; a weight that is NaN is no link.
    """
    frame, shape = call.frame, (call.batch, call.heads)
    times = torch.zeros(*shape, count, dtype=call.work_dtype, device=call.device)
    weight = torch.zeros_like(times)
    pair = torch.full_like(times, -1, dtype=torch.int64)
    height = max(1, PAIRS_AT_ONCE // max(1, call.batch * call.heads * frame.k_len))
    for first in range(0, frame.q_len, height):
        rows = range(first, min(first + height, frame.q_len))
        weights = tile_of(call, rows, range(frame.k_len))
        heard = call.mask.visible_in(frame, call.device, torch.tensor(rows, device=call.device)).sum(-1, keepdim=True)
        pairs = torch.arange(rows.start * frame.k_len, rows.stop * frame.k_len, device=call.device)
        # What was kept comes from earlier queries, so a stable order has it first.
        every_times = torch.cat([times, (weights * heard).nan_to_num(0.0).flatten(2)], -1)
        every_weight = torch.cat([weight, weights.flatten(2)], -1)
        every_pair = torch.cat([pair, pairs.expand(*shape, -1)], -1)
        largest = [_largest(of_head, count) for of_head in every_times.flatten(0, 1)]
        order = torch.stack(largest).view(*shape, count)
        times, weight, pair = (each.gather(-1, order) for each in (every_times, every_weight, every_pair))
    missing = times <= 0
    weight = weight.masked_fill(missing, 0)
    width = max(1, frame.k_len)
    query = (pair // width + frame.q_start).masked_fill(missing, -1)
    return Links(weight, query, (pair % width).masked_fill(missing, -1)), times


def _largest(numbers: Tensor, count: int) -> Tensor:
    """The places of the `count` largest numbers, the largest first; of equal ones the first. A sort of all is slow."""
    least = numbers.topk(count).values[-1:]
    places = (numbers >= least).nonzero().squeeze(-1)
    return places[numbers[places].sort(descending=True, stable=True).indices[:count]]
