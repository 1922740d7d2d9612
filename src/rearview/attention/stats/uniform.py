"""Uniform attention under the same mask: what each key would receive if every query weighted its keys equally.

    >>> from rearview import causal
    >>> from rearview.masks import Frame
    >>> received, _ = uniform(causal(), Frame.of(3), torch.device("cpu"), bin_width=0)
    >>> [round(float(mass), 4) for mass in received[0, 0]]    # 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3
    [1.8333, 0.8333, 0.3333]

Under a causal mask early keys are heard by more queries, so they receive more even if attention has no preference.
"""

from __future__ import annotations

import weakref
from functools import lru_cache

import torch
from torch import Tensor

from rearview.attention.stats.bins import first_position, map_shape, pooled_columns, pooled_rows
from rearview.masks import Frame, Mask, Spans
from rearview.masks.inspection.hearing import strips_of

# The largest number of (query, bin edge) pairs at a time.
EDGES_AT_ONCE = 2**21

# All layers of a model share the result, which is dropped together with the ranges.
_known: weakref.WeakKeyDictionary[Spans, dict[tuple[int, int], tuple[Tensor, Tensor | None]]] = (
    weakref.WeakKeyDictionary()
)


def uniform(mask: Mask, frame: Frame, device: torch.device, *, bin_width: int) -> tuple[Tensor, Tensor | None]:
    """The mass received [batch or 1, heads or 1, k_len] and the map of sums (None if `bin_width` is 0), in float64."""
    # A tensor that a dispatch mode creates, such as a fake tensor, must not be cached.
    is_dispatching = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    if frame.q_len == 1 and not is_dispatching and (heard := mask.one_range(frame)):
        received, pooled = _of_one(*heard, frame, bin_width)
        return received.to(device), None if pooled is None else pooled.to(device)
    if not mask.has_ranges:
        return _from_rule(mask, frame, device, bin_width)
    spans = mask.spans_in(frame, torch.device("cpu"))
    known = _known.setdefault(spans, {})
    if (frame.q_start, bin_width) not in known:
        pooled = _pooled_from_spans(spans, frame, bin_width) if bin_width else None
        known[frame.q_start, bin_width] = _received_from_spans(spans), pooled
    received, pooled = known[frame.q_start, bin_width]
    return received.to(device), None if pooled is None else pooled.to(device)


@lru_cache(maxsize=4)
def _of_one(start: int, end: int, frame: Frame, width: int) -> tuple[Tensor, Tensor | None]:
    """The result for a single query that hears the keys [start, end), as in a step of generation."""
    received = torch.zeros(1, 1, frame.k_len, dtype=torch.float64, device="cpu")
    received[..., start:end] = 1 / (end - start)
    if not width:
        return received, None
    pooled = received.new_zeros(1, 1, *map_shape(frame, width))
    row = (frame.q_start - first_position(frame)) // width
    first, last = start // width, (end - 1) // width
    pooled[..., row, first : last + 1] = width / (end - start)
    # The first and the last bin may be heard in part.
    pooled[..., row, first] -= (start - first * width) / (end - start)
    pooled[..., row, last] -= ((last + 1) * width - end) / (end - start)
    return received, pooled


def _received_from_spans(spans: Spans) -> Tensor:
    # Each range gives its keys 1 / keys heard: add at its start, subtract at its end, and take the running sum.
    share = (1 / spans.keys_heard.double().clamp(min=1)).unsqueeze(-1)
    if spans.starts.shape[2] == 1:
        share = share[:, :, :1] * spans.q_len
    edges = torch.zeros(spans.batch, spans.heads, spans.k_len + 1, dtype=torch.float64)
    if spans.q_len:
        share = share.expand(spans.starts.shape).flatten(2)
        edges.scatter_add_(-1, spans.starts.flatten(2).long(), share)
        edges.scatter_add_(-1, spans.ends.flatten(2).long(), -share)
    return edges[..., :-1].cumsum(-1).clamp_(min=0)


def _pooled_from_spans(spans: Spans, frame: Frame, width: int) -> Tensor:
    rows, columns = map_shape(frame, width)
    edges = torch.arange(columns + 1, dtype=torch.int32).mul_(width).clamp_(max=frame.k_len)
    pooled = torch.zeros(spans.batch, spans.heads, rows, columns, dtype=torch.float64)
    lookups = max(1, spans.batch * spans.heads * spans.most_ranges * (columns + 1))
    step = max(1, EDGES_AT_ONCE // lookups)
    origin = first_position(frame)
    for first in range(0, frame.q_len, step):
        part = slice(first, min(first + step, frame.q_len))
        height = part.stop - part.start
        own = part if spans.starts.shape[2] > 1 else slice(None)
        # The number of heard keys before each edge.
        before = torch.zeros(spans.batch, spans.heads, 1, columns + 1, dtype=torch.int32)
        for start, end in zip(spans.starts[:, :, own].unbind(-1), spans.ends[:, :, own].unbind(-1), strict=True):
            inside = torch.minimum(edges.sub(start.unsqueeze(-1)).clamp_(min=0), (end - start).unsqueeze(-1))
            before = before + inside
        share = before.diff(dim=-1) / before[..., -1:].double().clamp(min=1)
        place = frame.q_start + part.start - origin
        binned = pooled_rows(share.expand(-1, -1, height, -1), place, width)
        pooled[:, :, place // width : place // width + binned.shape[2]] += binned
    return pooled


def _from_rule(mask: Mask, frame: Frame, device: torch.device, width: int) -> tuple[Tensor, Tensor | None]:
    lead = (mask.batch or 1, mask.heads or 1)
    received = torch.zeros(*lead, frame.k_len, dtype=torch.float64, device=device)
    shape = map_shape(frame, width) if width else (0, 0)
    pooled = torch.zeros(*lead, *shape, dtype=torch.float64, device=device) if width else None
    origin, first = first_position(frame), 0
    for rows, visible in strips_of(mask, frame, device):
        if len(rows) == 0 or frame.k_len == 0:
            continue
        share = visible.double()
        share /= share.sum(-1, keepdim=True).clamp_(min=1)
        received += share.sum(2)
        if pooled is not None:
            place = frame.q_start + first - origin
            binned, _ = pooled_columns(pooled_rows(share, place, width), 0, width)
            pooled[:, :, place // width : place // width + binned.shape[2]] += binned
        first += len(rows)
    return received, pooled
