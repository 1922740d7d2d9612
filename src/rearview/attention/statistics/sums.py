"""What a pass over all weights gives: for each query, for each key, for each distance, and for each bin of the map.

>>> from rearview.masks import Frame
>>> distance_edges(Frame.of(6))
(0, 1, 2, 4, 8)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.request import Request
from rearview.attention.statistics.bins import map_shape
from rearview.attention.statistics.result import FIRST
from rearview.masks import Frame


@dataclass(frozen=True, eq=False)
class Sums:
    """Axes [batch, heads, ...], contiguous, in the dtype of the work. The fields are those of `Statistics`.

    A pass is a function (request, sinks, bin_width) -> Sums; which one runs is decided in measure.py.
    """

    lse: Tensor
    """[B, H, Q], sinks counted in: where no key is heard, the sink, or -inf."""
    entropy: Tensor
    top: Tensor
    """[B, H, Q] the largest weight of each row; 0 where nothing is heard."""
    first: Tensor
    distance: Tensor
    received: Tensor
    histogram: Tensor
    """[B, H, len(distance_edges(frame))]"""
    map: Tensor | None
    """[B, H, *map_shape(frame, bin_width)], None for a width of 0; so is `rows_heard` [B, H, bins of queries]."""
    rows_heard: Tensor | None

    @classmethod
    def of_nothing(cls, request: Request, bin_width: int) -> Sums:
        """Those of queries that hear nothing."""
        frame, lead = request.frame, (request.batch, request.heads)

        def filled(*shape: int, value: float = 0.0) -> Tensor:
            return torch.full((*lead, *shape), value, dtype=request.work_dtype, device=request.device)

        return cls(
            lse=filled(frame.q_len, value=-torch.inf),
            entropy=filled(frame.q_len),
            top=filled(frame.q_len),
            first=filled(frame.q_len, len(FIRST)),
            distance=filled(frame.q_len),
            received=filled(frame.k_len),
            histogram=filled(len(distance_edges(frame))),
            map=filled(*map_shape(frame, bin_width)) if bin_width else None,
            rows_heard=filled(map_shape(frame, bin_width)[0]) if bin_width else None,
        )


def distance_edges(frame: Frame) -> tuple[int, ...]:
    """Bin 0 of the histogram is the future; bin n goes from edges[n - 1] up to, and without, edges[n]."""
    edges = [0, 1]
    while edges[-1] < frame.q_end:
        edges.append(2 * edges[-1])
    return tuple(edges)


def histogram_of(by_offset: Tensor, frame: Frame) -> Tensor:
    """Of mass [.., q_len + k_len - 1] by key position - query position, from the furthest back to the furthest ahead.

    >>> histogram_of(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), Frame.of(3)).tolist()    # back 2, 1, 0, ahead 1, 2
    [9.0, 3.0, 2.0, 1.0]
    """
    # Distance 0 lies at index q_end - 1, larger distances before it.
    zero, length = frame.q_end - 1, by_offset.shape[-1]
    cuts = [length, *(min(max(0, zero + 1 - edge), length) for edge in distance_edges(frame))]
    return torch.stack([by_offset[..., low:high].sum(-1) for high, low in itertools.pairwise(cuts)], -1)
