"""RowRanges of a mask as packed sequences with one band: what FlashAttention's arguments can express.

    >>> from rearview import causal, documents
    >>> rows = RowRanges.of((causal() & documents([0, 0, 1])).spans(3), batch=1)
    >>> as_packed(rows).keys.tolist(), find_band(rows, as_packed(rows))
    ([0, 2, 3], Band(left=-1, right=0))

The whole batch is laid out as one row of queries and one of keys. A candidate is derived from a few rows and then
compared with every row, so a result is exact.
"""

from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from rearview.masks.spans import Spans


class RowRanges(NamedTuple):
    """The keys `[start, end)` that each query of the laid-out batch hears; `heard` is False where it hears none."""

    start: Tensor
    end: Tensor
    heard: Tensor
    batch: int
    k_len: int

    @classmethod
    def of(cls, spans: Spans, *, batch: int) -> "RowRanges":
        """The rows of spans that have one range per row, the same for all heads."""
        shape = (batch, spans.q_len)
        starts, ends = (edge[:, 0, :, 0].long().expand(shape) for edge in (spans.starts, spans.ends))
        first_key = torch.arange(batch).unsqueeze(1) * spans.k_len
        heard = (starts < ends).flatten()
        return cls((starts + first_key).flatten(), (ends + first_key).flatten(), heard, batch, spans.k_len)


class Packed(NamedTuple):
    """Where sequences begin and end in the row of queries and in the row of keys: both [sequences + 1]."""

    queries: Tensor
    keys: Tensor


class Band(NamedTuple):
    """The number of keys before and after its own place that a query hears; -1 is no limit."""

    left: int
    right: int


def as_rectangles(rows: RowRanges) -> Packed:
    """One sequence per batch item: the layout of the dense function."""
    items = torch.arange(rows.batch + 1)
    return Packed(items * (len(rows.start) // rows.batch), items * rows.k_len)


def as_packed(rows: RowRanges) -> Packed | None:
    """Runs of queries whose keys lie beyond all keys before them; None when such runs overlap."""
    total = len(rows.start)
    if total == 0:
        return None
    reach = torch.where(rows.heard, rows.end, 0).cummax(0).values
    opens = torch.ones(total, dtype=torch.bool)
    opens[1:] = (rows.heard[1:] != rows.heard[:-1]) | (rows.heard[1:] & (rows.start[1:] >= reach[:-1]))
    first = opens.nonzero().flatten()
    run = opens.cumsum(0) - 1
    # A run that hears nothing has no keys, and is put where the keys so far end.
    last_key = torch.zeros(len(first), dtype=torch.long).scatter_reduce(0, run, reach, "amax")
    start = torch.where(rows.heard, rows.start, reach)
    first_key = torch.full_like(last_key, rows.batch * rows.k_len).scatter_reduce(0, run, start, "amin")
    if bool((first_key[1:] < last_key[:-1]).any()):
        return None
    # Between two runs, and at the end, a sequence without queries takes the keys that no query hears.
    ends = torch.cat([first[1:], torch.tensor([total])])
    queries = torch.cat([torch.zeros(1, dtype=torch.long), torch.stack([first, ends], 1).flatten(), ends[-1:]])
    total_keys = torch.tensor([rows.batch * rows.k_len])
    keys = torch.cat([torch.zeros(1, dtype=torch.long), torch.stack([first_key, last_key], 1).flatten(), total_keys])
    moved = torch.ones(len(queries), dtype=torch.bool)
    moved[1:] = (queries.diff() > 0) | (keys.diff() > 0)
    return Packed(queries[moved], keys[moved])


def find_band(rows: RowRanges, packed: Packed) -> Band | None:
    """The band that gives exactly these rows in these sequences, each aligned at its bottom right."""
    sequence = torch.arange(len(packed.queries) - 1).repeat_interleave(packed.queries.diff())
    first, last = packed.keys[sequence], packed.keys[sequence + 1]
    # The last query of a sequence is at its last key.
    place = last - packed.queries[sequence + 1] + torch.arange(len(rows.start))
    cut_left, cut_right = rows.heard & (rows.start > first), rows.heard & (rows.end < last)
    left = [int((place - rows.start)[cut_left][0])] if bool(cut_left.any()) else [-1]
    # Nothing cut on the right may still mean causal: queries before the first key hear nothing.
    right = [int((rows.end - 1 - place)[cut_right][0])] if bool(cut_right.any()) else [-1, 0]
    most_keys = int(packed.keys.diff().max())
    for band in (Band(*sides) for sides in product(left, right)):
        start, end = _heard(band, place, first, last, most_keys)
        same = (rows.start == start) & (rows.end == end) | ~rows.heard & (start >= end)
        if min(band) >= -1 and bool(same.all()):
            return band
    return None


def _heard(band: Band, place: Tensor, first: Tensor, last: Tensor, most_keys: int) -> tuple[Tensor, Tensor]:
    # As flash_api.cpp does it: a side as long as the keys becomes no limit, and one limit alone makes the other side
    # as long as the keys. For queries before the first key these are not the same.
    left, right = (-1 if side >= most_keys else side for side in band)
    if left < 0 and right < 0:
        return first, last
    left, right = (most_keys if side < 0 else side for side in (left, right))
    return torch.maximum(first, place - left), torch.minimum(last, place + right + 1)
