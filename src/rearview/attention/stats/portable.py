"""The pass in plain PyTorch, for any mask and device: weights are computed and summed a strip of queries at a time."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.stats.bins import first_position, pooled_columns, pooled_rows
from rearview.attention.stats.diagonals import diagonal_sums
from rearview.attention.stats.links import strongest_links
from rearview.attention.stats.strips import Strips, StripWeights
from rearview.attention.stats.sums import FIRST, Sums, histogram_of

# Shapes: N = batch x key heads, G = query heads per key head, Q/K = queries/keys; lower case is the part in a strip.


def compute_sums(call: Call, bin_width: int, links: int) -> Sums:
    """The sums of any call."""
    sums = Sums.of_nothing(call, bin_width)
    if 0 in (call.batch, call.frame.q_len, call.frame.k_len):
        return sums
    collector = Collector(call, sums, bin_width)
    for strip in Strips(call):
        collector.add(strip)
    collector.finish()
    if call.sinks is not None:
        # In a strip, a query that hears no key still has the sink in its softmax.
        torch.maximum(sums.lse, call.sinks.view(1, -1, 1), out=sums.lse)
    top = collector.top.view_as(sums.lse)
    return dataclasses.replace(sums, links=strongest_links(call, top, links))


class Collector:
    """Adds strips to sums, through views [N, G, ...] of their memory."""

    def __init__(self, call: Call, sums: Sums, bin_width: int):
        self.frame, self.bin_width, self.sums = call.frame, bin_width, sums
        grouped = (call.batch * call.key_heads, call.queries_per_key_head)

        def by_group(x: Tensor) -> Tensor:
            return x.view(*grouped, *x.shape[2:])

        self.lse, self.entropy = by_group(sums.lse), by_group(sums.entropy)
        # The largest weight of each row, which the links are found by.
        self.top = torch.zeros_like(self.lse)
        self.first, self.distance = by_group(sums.first), by_group(sums.distance)
        self.received = by_group(sums.received)
        self.map = None if sums.map is None else by_group(sums.map)
        self.heard = torch.zeros_like(self.lse)
        # Mass by key position - query position, in ascending order.
        self.by_offset = self.lse.new_zeros(*grouped, self.frame.q_len + self.frame.k_len - 1)
        self.key_positions = torch.arange(self.frame.k_len, dtype=call.work_dtype, device=call.device)
        spans = call.spans
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
        # Sum of w (position + step - key) = sum of w (position - key) + step x sum of w. Relative to the strip,
        # distances are small where attention is local, which keeps rounding errors small.
        keys = [self.key_positions[part] for part in strip.parts]
        back = position - (keys[0] if len(keys) == 1 else torch.cat(keys))
        from_first = torch.mv(strip.weights.view(-1, len(back)), back).view_as(strip.mass)
        steps = torch.arange(strip.mass.shape[-1], dtype=back.dtype, device=back.device)
        self.distance[strip.n, strip.of_group, strip.rows] = from_first + steps * strip.mass

    def _add_diagonals(self, strip: StripWeights, part: slice, weights: Tensor, position: int) -> None:
        n, g, q, width = weights.shape
        is_lower = self.looks_back and part.stop == position + q
        sums = diagonal_sums(weights.view(n * g, q, width), is_lower=is_lower).view(n, g, -1)
        # The first sum belongs to the last row and the first key of the part.
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
