"""A part of a head's map at any resolution, computed from the queries and keys that were kept.

>>> import torch
>>> from rearview import MaskedSelfAttention, observe
>>> layer = MaskedSelfAttention(8, 2)
>>> with observe(layer) as seen:
...     out = layer(torch.randn(1, 12, 8))
>>> tile = pooled_tile(seen.layers[0], 1, rows=range(4, 12), cols=range(0, 12), bins=(4, 4))
>>> tile.map.shape, [round(float(row), 4) for row in tile.map.sum(-1)]
(torch.Size([2, 3]), [1.0, 1.0])
>>> torch.allclose(tile.map[0, 0], seen.tile(0, 1)[4:8, :4].sum(-1).mean())
True

As in every map, a cell is the sum over its keys and the mean over its queries. The log-sum-exp of each query is known,
so only the keys of the part are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention import Alibi
from rearview.attention.call import Call
from rearview.errors import Unsupported
from rearview.observation.result.layer import Layer

# The largest number of scores that are held at once.
MOST_SCORES = 1 << 22


@dataclass(frozen=True, eq=False)
class PooledTile:
    """Maps [rows, columns] of bins: `map` are the weights, `uniform` what uniform attention would give."""

    map: Tensor
    uniform: Tensor


@torch.no_grad()
def pooled_tile(
    layer: Layer,
    row: int,
    *,
    rows: range,
    cols: range,
    bins: tuple[int, int],
    item: int = 0,
    check: Callable[[], None] = lambda: None,
) -> PooledTile:
    """The weights of the queries at positions `rows` on the keys `cols`, in bins of `bins` queries x keys.

    `check` is called before each strip of queries; it may raise to stop a large tile.
    """
    if layer.retained is None:
        why = layer.why_not_retained or "queries and keys were not kept"
        raise Unsupported(f"{layer.name} has no exact weights", [why])
    high, wide = math.ceil(len(rows) / bins[0]), math.ceil(len(cols) / bins[1])
    sums, expected = torch.zeros(high, wide), torch.zeros(high, wide)
    lse, start = layer.statistics.lse[item, row].float().cpu(), layer.statistics.frame.q_start
    columns = torch.arange(len(cols)) // bins[1]
    heard = torch.zeros(high)
    for call in layer.retained.calls(item, row):
        asked = range(max(rows.start, call.frame.q_start), min(rows.stop, call.frame.q_end))
        keys = range(cols.start, min(cols.stop, call.frame.k_len))
        counts = _counts(call)
        strip = max(1, MOST_SCORES // max(1, len(keys) if counts is not None else call.frame.k_len))
        for first in range(asked.start, asked.stop, strip):
            check()
            some = range(first, min(first + strip, asked.stop))
            own_lse = lse[some.start - start : some.stop - start]
            weights, visible, heard_keys = _strip(call, some, keys, counts, own_lse)
            into = (torch.arange(some.start, some.stop) - rows.start) // bins[0]
            for target, values in ((sums, weights), (expected, visible / heard_keys.clamp(min=1).unsqueeze(-1))):
                pooled = torch.zeros(len(some), wide).index_add_(1, columns[: len(keys)], values)
                target.index_add_(0, into, pooled)
            heard.index_add_(0, into, (heard_keys > 0).float())
    rows_heard = heard.clamp(min=1).unsqueeze(-1)
    return PooledTile(sums / rows_heard, expected / rows_heard)


def _counts(call: Call) -> Tensor | None:
    """The number of keys that each query of one head hears, from the ranges of the mask; None if it has none."""
    if not call.mask.has_ranges:
        return None
    spans = call.mask.spans_in(call.frame, torch.device("cpu"))
    return spans.keys_heard[0, 0].expand(call.frame.q_len)


def _strip(call: Call, rows: range, keys: range, counts: Tensor | None, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights [rows, keys] of one head, who is heard as 0 and 1, and the number of keys that each query hears."""
    own = slice(rows.start - call.frame.q_start, rows.stop - call.frame.q_start)
    query, key = call.query[0, 0, own].float(), call.key[0, 0, keys.start : keys.stop].float()
    scores = query @ key.T * call.scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if isinstance(call.bias, Alibi):
        positions = torch.arange(rows.start, rows.stop), torch.arange(keys.start, keys.stop)
        scores = scores + call.bias.tile(*positions).reshape(-1, len(rows), len(keys))[0]
    elif call.bias is not None:
        bias = call.dense_bias()
        assert bias is not None
        whole = bias.expand(1, 1, call.frame.q_len, call.frame.k_len)
        scores = scores + whole[0, 0, own, keys.start : keys.stop].float()
    one, query_positions = torch.zeros(1, 1, 1, 1, dtype=torch.long), torch.arange(rows.start, rows.stop)
    heard_from = keys if counts is not None else range(call.frame.k_len)
    key_positions = torch.arange(heard_from.start, heard_from.stop)
    visible = call.mask.visible(one, one, query_positions.view(1, 1, -1, 1), key_positions.view(1, 1, 1, -1))
    visible = visible.expand(1, 1, len(rows), len(heard_from))[0, 0]
    heard = visible.sum(-1) if counts is None else counts[own]
    if counts is None:
        visible = visible[:, keys.start : keys.stop]
    weights = (scores - lse.unsqueeze(-1)).exp().masked_fill(~visible, 0)
    return weights, visible.float(), heard
