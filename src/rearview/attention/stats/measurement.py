"""statistics(): check the arguments, run one pass over the weights, and compare with uniform attention."""

from __future__ import annotations

from typing import Protocol, Unpack

import torch
from torch import Tensor

from rearview.attention.arguments import without_autocast
from rearview.attention.call import Call, ScoreOptions, shows_options
from rearview.attention.stats import gpu, native, portable
from rearview.attention.stats.bins import width_for
from rearview.attention.stats.result import Statistics
from rearview.attention.stats.sums import Sums, distance_edges
from rearview.attention.stats.uniform import uniform
from rearview.errors import BadArgument
from rearview.masks.frame import whole_number


@shows_options
def statistics(
    query: Tensor,
    key: Tensor,
    *,
    map_size: int | None = 64,
    links: int = 32,
    bin_width: int | None = None,
    **options: Unpack[ScoreOptions],
) -> Statistics:
    """Statistics of the attention weights in O(T) memory: the matrix of weights is never stored.

    Args:
        query, key, mask, q_start, bias, scale, softcap, sinks: as in `attend`. With sinks, the weights of a row sum to
            less than 1, and `lse` includes the sinks.
        map_size: the largest number of bins per side of the pooled map; None for no map.
        links: the number of largest weights to keep per head; 0 for none.
        bin_width: the number of positions per bin of the map, doubled until the map fits; by default the smallest that
            fits. To join a step of generation to earlier statistics, pass their `bin_width`.

    Returns:
        `Statistics` with axes [batch, heads, ...], in float32, or in float64 if the query is float64. There are no
        gradients.

    >>> import torch
    >>> from rearview import statistics
    >>> q, k = torch.randn(1, 8, 100, 64), torch.randn(1, 2, 100, 64)
    >>> seen = statistics(q, k)
    >>> seen.entropy.shape, round(float(seen.received.sum()))    # 8 heads x 100 queries, each gives 1
    (torch.Size([1, 8, 100]), 800)
    """
    call = Call.of_scores(query, key, **options)
    return statistics_of(call, map_size=map_size, links=links, bin_width=bin_width)


@torch.no_grad()
def statistics_of(
    call: Call, *, map_size: int | None = 64, links: int = 32, bin_width: int | None = None
) -> Statistics:
    """`statistics` of an existing `Call`."""
    links = whole_number(links, "links", at_least=0)
    width = _bin_width(call, map_size, bin_width)
    with without_autocast(call.device):
        sums = pass_for(call)(call, width, links)
        expected, expected_map = uniform(call.mask, call.frame, call.device, bin_width=width)
    return Statistics(
        **vars(sums),
        frame=call.frame,
        expected=expected.to(call.work_dtype),
        expected_map=None if expected_map is None else expected_map.to(call.work_dtype),
        histogram_edges=distance_edges(call.frame),
        links_kept=links,
        map_size=map_size,
        bin_width=width,
    )


class Pass(Protocol):
    """Computes the sums over all weights of a call; `bin_width` 0 is no map, `links` is their number per head."""

    def __call__(self, call: Call, bin_width: int, links: int, /) -> Sums: ...


def pass_for(call: Call) -> Pass:
    """The fastest pass that can compute the sums of this call."""
    if native.suits(call):
        return native.compute_sums
    if gpu.suits(call):
        return gpu.compute_sums
    return portable.compute_sums


def _bin_width(call: Call, map_size: int | None, bin_width: int | None) -> int:
    """The number of positions per bin of the map, 0 for no map."""
    if map_size is None:
        if bin_width is not None:
            raise BadArgument(
                "bin_width", expected="None, since there is no map", got=bin_width, advice="Pass map_size=64."
            )
        return 0
    size = whole_number(map_size, "map_size", at_least=1, advice="Pass None for no map.")
    at_least = None if bin_width is None else whole_number(bin_width, "bin_width", at_least=1)
    frame = call.frame
    return width_for(max(frame.k_len, frame.q_end, frame.q_len), map_size=size, at_least=at_least)
