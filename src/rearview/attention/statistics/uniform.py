"""What uniform attention under the same mask would give each key: the measure for what a key did receive.

    >>> from rearview import causal
    >>> from rearview.masks import Frame
    >>> received, _ = uniform(causal(), Frame.of(3), torch.device("cpu"), bin_width=0)
    >>> [round(float(mass), 4) for mass in received[0, 0]]    # 1 + 1/2 + 1/3, 1/2 + 1/3, 1/3
    [1.8333, 0.8333, 0.3333]

Early keys are heard by more queries, so a plain sum favours them even where attention prefers nobody.
"""

from __future__ import annotations

import weakref
from functools import lru_cache

import torch
from torch import Tensor

from rearview.attention.statistics.bins import first_position, map_shape, pooled_columns, pooled_rows
from rearview.masks import Frame, Mask, Spans
from rearview.masks.hearing import strips_of
from rearview.masks.step import heard_by_one

# Queries x edges that are looked at together.
EDGES_AT_ONCE = 2**21

# Every layer of a model asks the same of the same ranges.
_known: weakref.WeakKeyDictionary[Spans, dict[tuple[int, int], tuple[Tensor, Tensor | None]]] = (
    weakref.WeakKeyDictionary()
)


def uniform(mask: Mask, frame: Frame, device: torch.device, *, bin_width: int) -> tuple[Tensor, Tensor | None]:
    """Received [batch or 1, heads or 1, k_len], and the pooled map of sums (None when `bin_width` is 0); float64."""
    # What a dispatch mode makes, a fake tensor for instance, must not be kept for others.
    watched = torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack()
    if frame.q_len == 1 and not watched and (heard := heard_by_one(mask, frame)):
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
    """Of a single query that hears keys [start, end): a step of generation, which each layer makes."""
    received = torch.zeros(1, 1, frame.k_len, dtype=torch.float64, device="cpu")
    received[..., start:end] = 1 / (end - start)
    if not width:
        return received, None
    pooled = received.new_zeros(1, 1, *map_shape(frame, width))
    row = (frame.q_start - first_position(frame)) // width
    first, last = start // width, (end - 1) // width
    pooled[..., row, first : last + 1] = width / (end - start)
    # The bins at either end are not heard whole.
    pooled[..., row, first] -= (start - first * width) / (end - start)
    pooled[..., row, last] -= ((last + 1) * width - end) / (end - start)
    return received, pooled


def _received_from_spans(spans: Spans) -> Tensor:
    # Each range gives its keys 1 / keys heard: + where it opens, - where it closes, and a running sum.
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
        # How many of the heard keys lie before each edge.
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
