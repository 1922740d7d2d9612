"""statistics(): one pass over all weights, by whoever does that best, and the strongest of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.request import Request
from rearview.attention.statistics import gpu, kernel
from rearview.attention.statistics.bins import width_for
from rearview.attention.statistics.links import Links, strongest_links
from rearview.attention.statistics.result import Statistics
from rearview.attention.statistics.strip_sums import sums_by_strips
from rearview.attention.statistics.sums import Sums, distance_edges
from rearview.attention.statistics.uniform import uniform
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.frame import whole_number


@torch.no_grad()
def statistics(
    query: Tensor,
    key: Tensor,
    *,
    mask: Mask = causal(),
    q_start: int | None = None,
    bias: Tensor | Alibi | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    map_size: int | None = 64,
    links: int = 32,
    bin_width: int | None = None,
) -> Statistics:
    """What attention with these arguments does, in O(T) memory: nothing of size T x T is ever held.

    Args:
        query, key, mask, q_start, bias, scale, softcap: as in `attend`.
        sinks: [heads] learned logits, one a head, that take part in each softmax and are no key. They take mass away:
            the weights of a row then sum to less than 1, and `lse` counts them in.
        map_size: at most so many bins a side in the pooled map; None for no map.
        links: how many of the largest weights of each head to keep; 0 for none.
        bin_width: positions a bin of the map, doubled until the map fits. By default as few as fit. For a step of
            generation give that of what came before, so that the two can be joined.

    Returns:
        `Statistics`, with axes [batch, heads, ...] whatever axes the query came with; float32, or float64 where the
        query is. No gradients.

    >>> import torch
    >>> from rearview.attention import statistics
    >>> q, k = torch.randn(1, 8, 100, 64), torch.randn(1, 2, 100, 64)
    >>> seen = statistics(q, k)
    >>> seen.entropy.shape, round(float(seen.received.sum()))    # 8 heads x 100 queries, each gives 1
    (torch.Size([1, 8, 100]), 800)
    """
    request = Request.of(query, key, key, mask=mask, q_start=q_start, bias=bias, scale=scale, softcap=softcap)
    sinks = checked_sinks(sinks, request)
    links = whole_number(links, "links", at_least=0)
    width = _bin_width(request, map_size, bin_width)
    with torch.autocast(request.device.type, enabled=False):
        sums, found = _sums_and_links(request, sinks, width, links)
        expected, expected_map = uniform(mask, request.frame, request.device, bin_width=width)
    dtype = request.work_dtype
    return Statistics(
        frame=request.frame,
        lse=sums.lse,
        entropy=sums.entropy,
        received=sums.received,
        expected=expected.to(dtype),
        first=sums.first,
        distance=sums.distance,
        histogram=sums.histogram,
        histogram_edges=distance_edges(request.frame),
        links=found,
        links_kept=links,
        map=sums.map,
        rows_heard=sums.rows_heard,
        expected_map=None if expected_map is None else expected_map.to(dtype),
        map_size=map_size,
        bin_width=width,
    )


def _sums_and_links(request: Request, sinks: Tensor | None, bin_width: int, links: int) -> tuple[Sums, Links]:
    if kernel.suits(request):
        return kernel.sums_by_kernel(request, sinks, bin_width, links)
    sums = pass_for(request)(request, sinks, bin_width)
    return sums, strongest_links(request, sinks, sums.top, links)


def pass_for(request: Request) -> Callable[[Request, Tensor | None, int], Sums]:
    """Who computes the sums, where the CPU kernel does not: (request, sinks, bin_width) -> Sums."""
    if gpu.suits(request):
        return gpu.sums_on_gpu
    return sums_by_strips


def checked_sinks(sinks: Any, request: Request) -> Tensor | None:
    """`sinks` in the dtype and on the device of the work."""
    if sinks is None:
        return None
    expected = f"a float tensor [{request.heads}], one logit a query head"
    if not isinstance(sinks, Tensor):
        raise BadArgument("sinks", expected=expected, came=type(sinks).__name__)
    if not sinks.is_floating_point() or sinks.shape != (request.heads,):
        raise BadArgument("sinks", expected=expected, came=f"{sinks.dtype} of shape {list(sinks.shape)}")
    return sinks.to(request.device, request.work_dtype)


def _bin_width(request: Request, map_size: int | None, bin_width: int | None) -> int:
    """Positions a bin of the map, 0 for no map."""
    if map_size is None:
        if bin_width is not None:
            raise BadArgument(
                "bin_width", expected="no width without a map", came=bin_width, advice="Give map_size=64."
            )
        return 0
    size = whole_number(map_size, "map_size", at_least=1, advice="None asks for no map.")
    at_least = None if bin_width is None else whole_number(bin_width, "bin_width", at_least=1)
    frame = request.frame
    return width_for(max(frame.k_len, frame.q_end, frame.q_len), map_size=size, at_least=at_least)
