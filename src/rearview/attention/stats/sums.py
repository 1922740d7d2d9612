"""Sums: what one pass over all weights gives, per query, per key, per distance and per bin of the map.

>>> from rearview.masks import Frame
>>> distance_edges(Frame.of(6))
(0, 1, 2, 4, 8)
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.stats.bins import map_shape
from rearview.attention.stats.links import Links
from rearview.masks import Frame

# The mass on the first 1, 4 and 8 keys is recorded: attention sinks are among them.
FIRST = (1, 4, 8)


@dataclass(frozen=True, eq=False)
class Sums:
    """Sums over the weights of a call, in the dtype that scores are computed in.

    Shapes: B batch, H heads, Q queries, K keys. A pass is a function (call, bin_width, links) -> Sums; measurement.py
    chooses it.
    """

    lse: Tensor
    """[B, H, Q] log-sum-exp of the scores, sinks included: a weight is exp(score - lse). -inf where a query hears
    nothing."""
    entropy: Tensor
    """[B, H, Q] -sum of w log w over the keys, in nats. 0 where a query hears nothing."""
    first: Tensor
    """[B, H, Q, 3] mass on the first 1, 4 and 8 keys."""
    distance: Tensor
    """[B, H, Q] sum of weight x (query position - key position); negative where a query looks ahead."""
    received: Tensor
    """[B, H, K] mass that each key received: the sum of its weights over queries."""
    histogram: Tensor
    """[B, H, bins] mass by distance, summed over queries. Bin 0 is the future; bin n covers the distances from
    edges[n - 1] to edges[n] - 1, where edges are `distance_edges(frame)`."""
    map: Tensor | None
    """[B, H, rows, columns] sum of the weights in each (query bin x key bin); None without a map. Bins of keys start at
    position 0, bins of queries at the first query if it is before 0."""
    rows_heard: Tensor | None
    """[B, H, rows] number of queries in each bin that hear anything; None without a map."""
    links: Links
    """The largest weights of each head."""

    @classmethod
    def of_nothing(cls, call: Call, bin_width: int) -> Sums:
        """The sums of queries that hear nothing but the sinks."""
        frame, lead = call.frame, (call.batch, call.heads)

        def filled(*shape: int, value: float = 0.0) -> Tensor:
            return torch.full((*lead, *shape), value, dtype=call.work_dtype, device=call.device)

        lse = filled(frame.q_len, value=-torch.inf)
        if call.sinks is not None:
            lse.copy_(call.sinks.view(1, -1, 1))
        return cls(
            lse=lse,
            entropy=filled(frame.q_len),
            first=filled(frame.q_len, len(FIRST)),
            distance=filled(frame.q_len),
            received=filled(frame.k_len),
            histogram=filled(len(distance_edges(frame))),
            map=filled(*map_shape(frame, bin_width)) if bin_width else None,
            rows_heard=filled(map_shape(frame, bin_width)[0]) if bin_width else None,
            links=Links.none(*lead, like=lse),
        )


def distance_edges(frame: Frame) -> tuple[int, ...]:
    """The edges of the histogram of distances: 0, 1, 2, 4, 8, ... up to the largest distance."""
    edges = [0, 1]
    while edges[-1] < frame.q_end:
        edges.append(2 * edges[-1])
    return tuple(edges)


def histogram_of(by_offset: Tensor, frame: Frame) -> Tensor:
    """The histogram of mass [.., q_len + k_len - 1], ordered by key position - query position.

    >>> histogram_of(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]), Frame.of(3)).tolist()    # back 2, 1, 0, ahead 1, 2
    [9.0, 3.0, 2.0, 1.0]
    """
    # Distance 0 is at index q_end - 1, and larger distances precede it.
    zero, length = frame.q_end - 1, by_offset.shape[-1]
    cuts = [length, *(min(max(0, zero + 1 - edge), length) for edge in distance_edges(frame))]
    return torch.stack([by_offset[..., low:high].sum(-1) for high, low in itertools.pairwise(cuts)], -1)
