"""Statistics: the result of `statistics`, and how the results of consecutive calls are joined."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.stats.bins import merged, width_for
from rearview.attention.stats.sums import Sums
from rearview.errors import BadArgument
from rearview.masks import Frame


@dataclass(frozen=True, eq=False)
class Statistics(Sums):
    """What each head of an attention call did: the sums over its weights, and what uniform attention would give.

    Every number is that of the full matrix of weights. `B or 1` is 1 where the mask is the same for the whole batch.

    >>> import torch
    >>> from rearview import statistics
    >>> statistics(torch.zeros(1, 2, 6, 8), torch.zeros(1, 2, 6, 8))
    Statistics(1 x 2 heads x 6 queries over 6 keys, map 6 x 6 in bins of 1, 32 links per head)
    """

    frame: Frame
    """The numbers of queries and keys, and the position of the first query."""
    expected: Tensor
    """[B or 1, H or 1, K] mass that each key would receive if every query weighted the keys it hears equally."""
    expected_map: Tensor | None
    """[B or 1, H or 1, rows, columns] `map` under the same assumption."""
    histogram_edges: tuple[int, ...]
    """The edges of the histogram: 0, 1, 2, 4, 8, ..."""
    links_kept: int
    """The number of links that was asked for, per head."""
    map_size: int | None
    """The largest number of bins per side of the map."""
    bin_width: int
    """The number of positions per bin; 0 without a map."""

    def pooled(self) -> Tensor:
        """The map with each row averaged over the queries of its bin: rows sum to 1, or are 0 where nothing is heard.

        >>> import torch
        >>> from rearview import statistics
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> statistics(x, x, map_size=2).pooled()[0, 0].tolist()    # bins of 2: (1 + 1) / 2, then 2/3 and 2/4
        [[1.0, 0.0], [0.5833333730697632, 0.4166666865348816]]
        """
        sums = self._has_map(self.map)
        return sums / self._has_map(self.rows_heard).clamp(min=1).unsqueeze(-1)

    def expected_pooled(self) -> Tensor:
        """`pooled` under uniform attention."""
        sums = self._has_map(self.expected_map)
        # Each query that hears anything contributes a mass of 1.
        heard = sums.sum(-1, keepdim=True)
        return sums / heard.masked_fill(heard == 0, 1)

    def joined(self, *later: Statistics) -> Statistics:
        """The statistics of this call and of those that continue its sequence, as if they were one call.

        >>> import torch
        >>> from rearview import statistics
        >>> x = torch.randn(1, 2, 6, 8)
        >>> prompt = statistics(x[:, :, :5], x[:, :, :5])
        >>> step = statistics(x[:, :, 5:], x, bin_width=prompt.bin_width)
        >>> torch.allclose(prompt.joined(step).received, statistics(x, x).received, atol=1e-5)
        True
        """
        if not later:
            return self
        parts = [self, *later]
        for before, after in zip(parts, later, strict=False):
            _check_continues(before, after)
        last = parts[-1]
        frame = Frame(sum(each.frame.q_len for each in parts), last.frame.k_len, self.frame.q_start)
        parts = _with_equal_bins(parts, frame)

        def along_queries(name: str) -> Tensor:
            return torch.cat([getattr(each, name) for each in parts], 2)

        return dataclasses.replace(
            last,
            frame=frame,
            lse=along_queries("lse"),
            entropy=along_queries("entropy"),
            first=along_queries("first"),
            distance=along_queries("distance"),
            received=_added([each.received for each in parts], 1),
            expected=_added([each.expected for each in parts], 1),
            histogram=_added([each.histogram for each in parts], 1),
            histogram_edges=max((each.histogram_edges for each in parts), key=len),
            links=self.links.joined(*(each.links for each in later), count=self.links_kept),
            map=_added([each.map for each in parts], 2),
            rows_heard=_added([each.rows_heard for each in parts], 1),
            expected_map=_added([each.expected_map for each in parts], 2),
            bin_width=parts[0].bin_width,
        )

    def _has_map(self, field: Tensor | None) -> Tensor:
        if field is None:
            raise BadArgument(
                "map_size", expected="statistics with a map", got="statistics without one", advice="Pass map_size=64."
            )
        return field

    def __repr__(self) -> str:
        batch, heads = self.lse.shape[:2]
        about = f"{batch} x {heads} heads x {self.frame.q_len} queries over {self.frame.k_len} keys"
        size = "no map"
        if self.map is not None:
            size = f"map {self.map.shape[-2]} x {self.map.shape[-1]} in bins of {self.bin_width}"
        return f"Statistics({about}, {size}, {self.links.weight.shape[-1]} links per head)"


def _check_continues(before: Statistics, after: Statistics) -> None:
    if not isinstance(after, Statistics):
        raise BadArgument("later", expected="Statistics", got=type(after).__name__)
    if before.lse.shape[:2] != after.lse.shape[:2]:
        got = f"{list(after.lse.shape[:2])} after {list(before.lse.shape[:2])}"
        raise BadArgument("later", expected="the same batch size and number of heads", got=got)
    if after.frame.q_start != before.frame.q_end or after.frame.k_len < before.frame.k_len:
        raise BadArgument(
            "later",
            expected=f"queries from position {before.frame.q_end} on, over at least {before.frame.k_len} keys",
            got=f"queries from position {after.frame.q_start} on, over {after.frame.k_len} keys",
        )
    if before.map_size != after.map_size or before.links_kept != after.links_kept:
        raise BadArgument(
            "later",
            expected=f"map_size={before.map_size} and links={before.links_kept}, as in the first call",
            got=f"map_size={after.map_size} and links={after.links_kept}",
        )


def _with_equal_bins(parts: list[Statistics], frame: Frame) -> list[Statistics]:
    """The parts with bins of one width: the widest, doubled until the whole sequence fits into the map."""
    map_size = parts[0].map_size
    if map_size is None:
        return parts
    widest = max(each.bin_width for each in parts)
    if any(widest % each.bin_width or not _is_power_of_two(widest // each.bin_width) for each in parts):
        raise BadArgument(
            "later",
            expected="bin widths that differ by powers of two",
            got=f"{' and '.join(str(width) for width in sorted({each.bin_width for each in parts}))}",
            advice="Pass bin_width=earlier.bin_width to each step.",
        )
    width = width_for(max(frame.k_len, frame.q_end, frame.q_len), map_size=map_size, at_least=widest)
    return [_widened(each, width // each.bin_width) for each in parts]


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
    """The sum of tensors that may be shorter along the last `axes`; missing elements count as 0."""
    given = [tensor for tensor in tensors if tensor is not None]
    if not given:
        return None
    # Batch and heads are equal, or 1 where all are the same; the last tensor is usually the longest.
    shape = [max(sizes) for sizes in zip(*(tensor.shape for tensor in given), strict=True)]
    last = given[-1]
    total, others = (last.clone(), given[:-1]) if list(last.shape) == shape else (last.new_zeros(shape), given)
    for tensor in others:
        part = total
        for axis in range(-axes, 0):
            part = part.narrow(axis, 0, tensor.shape[axis])
        part.add_(tensor)
    return total
