"""The pass in plain PyTorch: strips of weights, and all that is derived from each before the next takes its place."""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.attention.request import Request
from rearview.attention.statistics.bins import first_position, pooled_columns, pooled_rows
from rearview.attention.statistics.diagonals import diagonal_sums
from rearview.attention.statistics.result import FIRST
from rearview.attention.statistics.strips import Strips, StripWeights
from rearview.attention.statistics.sums import Sums, histogram_of

# Shapes: N = batch x key heads, G = query heads that share a key head, Q/K = positions; lower case is a strip's part.


def sums_by_strips(request: Request, sinks: Tensor | None, bin_width: int) -> Sums:
    """Any mask, any device."""
    sums = Sums.of_nothing(request, bin_width)
    if 0 in (request.batch, request.frame.q_len, request.frame.k_len):
        return sums
    collector = Collector(request, sums, bin_width)
    for strip in Strips(request, sinks):
        collector.add(strip)
    collector.finish()
    if sinks is not None:
        # A query that hears no key hears the sink.
        torch.maximum(sums.lse, sinks.view(1, -1, 1), out=sums.lse)
    return sums


class Collector:
    """Adds strips to sums that lie [N, G, ...] in the same memory."""

    def __init__(self, request: Request, sums: Sums, bin_width: int):
        self.frame, self.bin_width, self.sums = request.frame, bin_width, sums
        grouped = (request.batch * request.key_heads, request.queries_per_key_head)

        def by_group(x: Tensor) -> Tensor:
            return x.view(*grouped, *x.shape[2:])

        self.lse, self.entropy, self.top = by_group(sums.lse), by_group(sums.entropy), by_group(sums.top)
        self.first, self.distance = by_group(sums.first), by_group(sums.distance)
        self.received = by_group(sums.received)
        self.map = None if sums.map is None else by_group(sums.map)
        self.heard = torch.zeros_like(self.lse)
        # Mass by key position - query position, from the furthest back to the furthest ahead.
        self.by_offset = self.lse.new_zeros(*grouped, self.frame.q_len + self.frame.k_len - 1)
        self.key_positions = torch.arange(self.frame.k_len, dtype=request.work_dtype, device=request.device)
        spans = request.spans
        self.looks_back = spans is not None and not bool(
            (spans.first_future(self.frame.q_start) < self.frame.k_len).any()
        )

    def add(self, strip: StripWeights) -> None:
        rows = (strip.n, strip.of_group, strip.rows)
        self.lse[rows], self.entropy[rows], self.top[rows] = strip.lse, strip.entropy, strip.top
        self.heard[rows] = strip.heard
        position = self.frame.q_start + strip.rows.start
        self._add_distance(strip, position)
        offset = 0
        for part in strip.parts:
            width = part.stop - part.start
            weights = strip.weights[..., offset : offset + width]
            weights = weights if len(strip.parts) == 1 else weights.contiguous()
            offset += width
            for index, count in enumerate(FIRST):
                if part.start < count:
                    self.first[*rows, index] += weights[..., : count - part.start].sum(-1)
            self._add_diagonals(strip, part, weights, position)
            self._add_columns(strip, part, weights, position)

    def finish(self) -> None:
        self.sums.histogram.copy_(histogram_of(self.by_offset, self.frame).view_as(self.sums.histogram))
        if self.sums.rows_heard is not None:
            before = self.frame.q_start - first_position(self.frame)
            heard = torch.cat([self.heard.new_zeros(*self.heard.shape[:2], before), self.heard], -1)
            self.sums.rows_heard.copy_(pooled_columns(heard, 0, self.bin_width)[0].view_as(self.sums.rows_heard))

    def _add_distance(self, strip: StripWeights, position: int) -> None:
        # Sum of w (position + step - key) = sum of w (position - key) + step x sum of w. Counted from the strip's own
        # place the distances are small where attention is near, and little is lost to rounding.
        keys = [self.key_positions[part] for part in strip.parts]
        back = position - (keys[0] if len(keys) == 1 else torch.cat(keys))
        from_first = torch.mv(strip.weights.view(-1, len(back)), back).view_as(strip.mass)
        steps = torch.arange(strip.mass.shape[-1], dtype=back.dtype, device=back.device)
        self.distance[strip.n, strip.of_group, strip.rows] = from_first + steps * strip.mass

    def _add_diagonals(self, strip: StripWeights, part: slice, weights: Tensor, position: int) -> None:
        n, g, q, width = weights.shape
        is_lower = self.looks_back and part.stop == position + q
        sums = diagonal_sums(weights.view(n * g, q, width), is_lower=is_lower).view(n, g, -1)
        # The first sum is of the last row and the part's first key.
        first = part.start - (position + q - 1) + self.frame.q_end - 1
        self.by_offset[strip.n, strip.of_group, first : first + q + width - 1] += sums

    def _add_columns(self, strip: StripWeights, part: slice, weights: Tensor, position: int) -> None:
        place = (strip.n, strip.of_group)
        if self.map is None:
            self.received[*place, part] += weights.sum(2)
            return
        row_place = position - first_position(self.frame)
        rows = pooled_rows(weights, row_place, self.bin_width)
        self.received[*place, part] += rows.sum(2)
        bins, column = pooled_columns(rows, part.start, self.bin_width)
        row = row_place // self.bin_width
        self.map[*place, row : row + bins.shape[2], column : column + bins.shape[3]] += bins
