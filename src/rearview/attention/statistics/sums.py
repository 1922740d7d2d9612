"""What is kept of the strips: for each query, for each key, for each distance, and for each bin of the map."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from rearview.attention.request import Request
from rearview.attention.statistics.bins import first_position, map_shape, pooled_columns, pooled_rows
from rearview.attention.statistics.diagonals import diagonal_sums
from rearview.attention.statistics.links import Links
from rearview.attention.statistics.result import FIRST, Statistics
from rearview.attention.statistics.strips import StripWeights

# Shapes: N = batch x key heads, G = query heads that share a key head, Q/K = positions; lower case is a strip's part.


class Sums:
    """Starts as the statistics of queries that hear nothing; `add` each strip."""

    def __init__(self, request: Request, bin_width: int):
        self.request, self.frame, self.bin_width = request, request.frame, bin_width
        grouped = (request.batch * request.key_heads, request.queries_per_key_head)
        q_len, k_len = self.frame.q_len, self.frame.k_len

        def filled(*shape: int, value: float = 0.0) -> Tensor:
            return torch.full((*grouped, *shape), value, dtype=request.work_dtype, device=request.device)

        self.lse, self.entropy = filled(q_len, value=-torch.inf), filled(q_len)
        self.top, self.heard = filled(q_len), filled(q_len)
        self.first, self.distance = filled(q_len, len(FIRST)), filled(q_len)
        self.received = filled(k_len)
        # Mass by key position - query position, from the furthest back to the furthest ahead.
        self.by_offset = filled(max(0, q_len + k_len - 1))
        self.map = filled(*map_shape(self.frame, bin_width)) if bin_width else None
        self.key_positions = torch.arange(k_len, dtype=request.work_dtype, device=request.device)
        spans = request.spans
        self.looks_back = spans is not None and not bool((spans.first_future(self.frame.q_start) < k_len).any())

    @property
    def row_top(self) -> Tensor:
        return self._by_head(self.top)

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

    def result(
        self,
        *,
        expected: Tensor,
        expected_map: Tensor | None,
        links: Links,
        links_kept: int,
        map_size: int | None,
        sinks: Tensor | None,
    ) -> Statistics:
        edges, histogram = self._histogram()
        rows_heard = None
        if self.bin_width:
            first = self.frame.q_start - first_position(self.frame)
            pad = torch.zeros(*self.heard.shape[:2], first, dtype=self.heard.dtype, device=self.heard.device)
            rows_heard, _ = pooled_columns(torch.cat([pad, self.heard], -1), 0, self.bin_width)
        lse = self._by_head(self.lse)
        if sinks is not None:
            # A query that hears no key hears the sink.
            lse = torch.maximum(lse, sinks.view(1, -1, 1))
        return Statistics(
            frame=self.frame,
            lse=lse,
            entropy=self._by_head(self.entropy),
            received=self._by_head(self.received),
            expected=expected,
            first=self._by_head(self.first),
            distance=self._by_head(self.distance),
            histogram=self._by_head(histogram),
            histogram_edges=edges,
            links=links,
            links_kept=links_kept,
            map=None if self.map is None else self._by_head(self.map),
            rows_heard=None if rows_heard is None else self._by_head(rows_heard),
            expected_map=expected_map,
            map_size=map_size,
            bin_width=self.bin_width,
        )

    def _histogram(self) -> tuple[tuple[int, ...], Tensor]:
        edges = [0, 1]
        while edges[-1] < self.frame.q_end:
            edges.append(2 * edges[-1])
        # Distance 0 lies at index q_end - 1, larger distances before it.
        zero, length = self.frame.q_end - 1, self.by_offset.shape[-1]
        cuts = [length, *(min(max(0, zero + 1 - edge), length) for edge in edges)]
        bins = [self.by_offset[..., low:high].sum(-1) for high, low in itertools.pairwise(cuts)]
        return tuple(edges), torch.stack(bins, -1)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(0, (self.request.batch, self.request.key_heads)).flatten(1, 2)
