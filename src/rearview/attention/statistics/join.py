"""Statistics of one sequence that was seen in pieces, a prompt and its steps, as if it had been one call."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.attention.statistics.bins import merged, width_for
from rearview.attention.statistics.result import Statistics
from rearview.errors import BadArgument
from rearview.masks import Frame


def joined(earlier: Statistics, later: Sequence[Statistics]) -> Statistics:
    """See `Statistics.joined`."""
    if not later:
        return earlier
    pieces = [earlier, *later]
    for before, after in zip(pieces, later, strict=False):
        _check(before, after)
    last = pieces[-1]
    frame = Frame(sum(each.frame.q_len for each in pieces), last.frame.k_len, earlier.frame.q_start)
    pieces = _with_equal_bins(pieces, frame)
    edges = max((each.histogram_edges for each in pieces), key=len)

    def along_queries(name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in pieces], 2)

    return dataclasses.replace(
        last,
        frame=frame,
        lse=along_queries("lse"),
        entropy=along_queries("entropy"),
        first=along_queries("first"),
        distance=along_queries("distance"),
        received=_added([each.received for each in pieces], 1),
        expected=_added([each.expected for each in pieces], 1),
        histogram=_added([each.histogram for each in pieces], 1),
        histogram_edges=edges,
        links=earlier.links.joined(*(each.links for each in later), count=earlier.links_kept),
        map=_added([each.map for each in pieces], 2),
        rows_heard=_added([each.rows_heard for each in pieces], 1),
        expected_map=_added([each.expected_map for each in pieces], 2),
        bin_width=pieces[0].bin_width,
    )


def _check(before: Statistics, after: Statistics) -> None:
    if not isinstance(after, Statistics):
        raise BadArgument("later", expected="Statistics", came=type(after).__name__)
    if before.lse.shape[:2] != after.lse.shape[:2]:
        came = f"{list(after.lse.shape[:2])} after {list(before.lse.shape[:2])}"
        raise BadArgument("later", expected="the same batch and heads", came=came)
    if after.frame.q_start != before.frame.q_end or after.frame.k_len < before.frame.k_len:
        raise BadArgument(
            "later",
            expected=f"queries from position {before.frame.q_end} on, over at least {before.frame.k_len} keys",
            came=f"queries from {after.frame.q_start} on, over {after.frame.k_len} keys",
        )
    if before.map_size != after.map_size or before.links_kept != after.links_kept:
        raise BadArgument(
            "later",
            expected=f"map_size={before.map_size} and links={before.links_kept}, as before",
            came=f"map_size={after.map_size} and links={after.links_kept}",
        )


def _with_equal_bins(pieces: list[Statistics], frame: Frame) -> list[Statistics]:
    """All with the widest bins; wider still, by doubling, where together they outgrow the map."""
    map_size = pieces[0].map_size
    if map_size is None:
        return pieces
    widest = max(each.bin_width for each in pieces)
    if any(widest % each.bin_width or not _is_power_of_two(widest // each.bin_width) for each in pieces):
        raise BadArgument(
            "later",
            expected="bins that are 1, 2, 4, ... times as wide as those of the other",
            came=f"bins of {' and '.join(str(width) for width in sorted({each.bin_width for each in pieces}))}",
            advice="Give each step bin_width=earlier.bin_width.",
        )
    width = width_for(max(frame.k_len, frame.q_end, frame.q_len), map_size=map_size, at_least=widest)
    return [_widened(each, width // each.bin_width) for each in pieces]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def _widened(statistics: Statistics, times: int) -> Statistics:
    if times == 1 or statistics.map is None or statistics.rows_heard is None or statistics.expected_map is None:
        return statistics
    return dataclasses.replace(
        statistics,
        map=merged(statistics.map, times, (-2, -1)),
        rows_heard=merged(statistics.rows_heard, times, (-1,)),
        expected_map=merged(statistics.expected_map, times, (-2, -1)),
        bin_width=statistics.bin_width * times,
    )


def _added(tensors: Sequence[Tensor | None], axes: int) -> Tensor | None:
    """The sum of tensors that may be shorter along the last `axes`: what they lack is 0."""
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    # Batch and heads are the same, or 1 where nothing differs; the last is the longest, as a rule.
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in given), strict=True)]
    last = given[-1]
    total, others = (last.clone(), given[:-1]) if list(last.shape) == shape else (last.new_zeros(shape), given)
    for tensor in others:
        part = total
        for axis in range(-axes, 0):
            part = part.narrow(axis, 0, tensor.shape[axis])
        part.add_(tensor)
    return total
