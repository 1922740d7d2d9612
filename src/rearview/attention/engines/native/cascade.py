"""Keys in pages, read through the table; blocks that several items share are read once for all of them.

The queries of the items that share their first blocks are gathered as queries of one item, over the shared keys; the
rest of each item's keys is a call of its own, and the two are joined by their log-sum-exp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.native import kernel
from rearview.attention.engines.native.ranges import Ranges, ranges_for
from rearview.attention.pages import Pages

# With fewer reads of keys saved than this, the second call and the joining cost more (`python -m bench serving`).
WORTH_SHARING = 6144


def in_pages(call: Call) -> tuple[Tensor, Tensor]:
    """The output and the log-sum-exp of a call with pages, without gradients."""
    assert call.pages is not None
    ranges = ranges_for(call, call.key_heads)
    if shared := _worth_sharing(call, ranges):
        return _joined(call, ranges, shared)
    terms = kernel.terms_of(call, call.sinks)
    return kernel.forward(call.query, call.key, call.value, call.bias_tensor, ranges, terms, pages=call.pages)


def _worth_sharing(call: Call, ranges: Ranges) -> list[tuple[list[int], int]]:
    """Groups of items, and how many keys they share; none where that is not worth it, or changes the order of sums."""
    pages, block_size = call.pages, call.key.shape[2]
    if pages is None or call.batch == 1 or call.batch * call.frame.k_len < WORTH_SHARING:
        return []
    if call.batch_invariant or call.bias is not None or call.dropout:
        return []
    groups = [(items, blocks * block_size) for items, blocks in pages.shared_prefixes(block_size)]
    # Ranges are in order, so no query reads the keys before the smallest first start.
    first_key = int(ranges.starts[..., 0].min())
    saved = sum((len(items) - 1) * max(0, length - first_key) for items, length in groups)
    return groups if saved >= WORTH_SHARING else []


def _joined(call: Call, ranges: Ranges, groups: list[tuple[list[int], int]]) -> tuple[Tensor, Tensor]:
    pages, query = call.pages, call.query
    assert pages is not None
    batch, heads, q_len, _ = query.shape
    starts, ends = (edge.expand(batch, -1, q_len, -1) for edge in (ranges.starts, ranges.ends))
    begins = torch.zeros(batch, 1, 1, 1, dtype=torch.int32)
    for items, length in groups:
        begins[items] = length
    heard = None if ranges.heard is None else ranges.heard.expand(batch, -1, -1)
    own = Ranges.of(starts.maximum(begins), ends.maximum(begins), heard)
    terms = kernel.terms_of(call, call.sinks)
    out, lse = kernel.forward(query, call.key, call.value, None, own, terms, pages=pages, unrounded=True)
    # The sinks are counted in once.
    terms = kernel.terms_of(call)
    for items, length in groups:
        # As the queries of one item, which holds the shared keys alone.
        rows = query[items].transpose(0, 1).reshape(1, heads, -1, query.shape[3])
        first = Pages(pages.table[items[:1]], [length])
        by_any = None if heard is None else heard[items, :, :length].amax(0, keepdim=True)
        shared = Ranges.of(_as_one_item(starts[items], length), _as_one_item(ends[items], length), by_any)
        answer = kernel.forward(rows, call.key, call.value, None, shared, terms, pages=first, unrounded=True)
        apart = [each.unflatten(2, (-1, q_len))[0].transpose(0, 1) for each in answer]
        out[items], lse[items] = _join((out[items], lse[items]), (apart[0], apart[1]))
    return out.to(query.dtype), lse


def _as_one_item(edges: Tensor, length: int) -> Tensor:
    """Edges of ranges [items, heads, query, range], cut to `length` keys, as [1, heads, items x query, range]."""
    return edges.clamp(max=length).transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _join(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """The output and log-sum-exp over the keys of both; a row may hear nothing of one, or of both."""
    lse = torch.logaddexp(a[1], b[1])
    finite = lse.masked_fill(lse == -torch.inf, 0)
    shares = [(own - finite).exp().unsqueeze(-1) for _, own in (a, b)]
    return a[0] * shares[0] + b[0] * shares[1], lse
