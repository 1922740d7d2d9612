"""Columns: for each key, the queries that hear it, as ranges. The dual of Spans, which backward passes read.

>>> from rearview import causal, window
>>> (causal() & window(2)).spans(4).columns.rows()
[[(0, 2)], [(1, 3)], [(2, 4)], [(3, 4)]]
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.drawing.cells import in_bytes
from rearview.errors import Unsupported
from rearview.masks.grouping import ranks
from rearview.masks.runs import MOST_RANGES
from rearview.masks.spans import Spans

BYTES_PER_RANGE = 8


def columns_of(spans: Spans) -> Spans:
    """The transpose of `spans`: its rows are the keys and its ranges are queries. O(ranges of both).

    Every row has as many range slots as the fullest one; `Unsupported` where they would take more than 1 GiB.
    """
    batch, heads, rows, _ = spans.starts.shape
    if rows == 1:
        # One row for every query: each key is heard by all of them or by none.
        heard = spans.heard_keys.unsqueeze(-1)
        ends = torch.where(heard, spans.q_len, 0)
        return Spans.of(torch.zeros_like(ends), ends, q_len=spans.k_len, k_len=spans.q_len)
    # A run of queries in a column opens where a row hears a key that the row before it did not hear.
    edge = spans.starts.new_full((1, 1, 1, 1), spans.k_len)
    nothing = Spans(edge, edge, q_len=1, k_len=spans.k_len)
    one_more = {"dim": 2, "q_len": spans.q_len + 1, "k_len": spans.k_len}
    before, after = Spans.stacked([nothing, spans], **one_more), Spans.stacked([spans, nothing], **one_more)
    opens, closes = _listed(after & ~before), _listed(before & ~after)
    # Both list the keys in order, with the queries of each key in order, so the n-th run opens and closes at place n.
    key, first, last = opens[0], opens[1], closes[1]
    count = torch.bincount(key, minlength=batch * heads * spans.k_len)
    slot = ranks(key, count)
    slots = max(1, int(count.max())) if count.numel() else 1
    if len(count) * slots > MOST_RANGES:
        where, size = int(count.argmax()) % spans.k_len, in_bytes(len(count) * slots * BYTES_PER_RANGE)
        reason = f"key {where} is heard by {slots:,} separate runs of queries; as many ranges for each key take {size}"
        raise Unsupported("spans.columns", [reason])
    starts = torch.full((len(count), slots), spans.q_len, dtype=torch.int32, device=key.device)
    ends = starts.clone()
    starts[key, slot], ends[key, slot] = first.int(), last.int()
    shape = (batch, heads, spans.k_len, slots)
    return Spans(starts.view(shape), ends.view(shape), q_len=spans.k_len, k_len=spans.q_len)


def _listed(spans: Spans) -> tuple[Tensor, Tensor]:
    """Every pair of spans as (key, counted over batch and heads, and query), sorted by key and then by query."""
    rows = spans.starts.shape[2]
    starts, lengths = spans.starts.flatten().long(), (spans.ends - spans.starts).flatten().long()
    each = torch.arange(len(starts), device=starts.device).repeat_interleave(lengths)
    row = each // spans.most_ranges
    key = row // rows * spans.k_len + starts[each] + ranks(each, lengths)
    key, order = key.sort(stable=True)
    return key, (row % rows)[order]
