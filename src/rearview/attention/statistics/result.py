"""Statistics: what one attention did, in O(T) numbers and a map of fixed size."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rearview.attention.statistics.links import Links
from rearview.errors import BadArgument
from rearview.masks import Frame

# The mass on so many first keys is kept: attention sinks are among them.
FIRST = (1, 4, 8)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What each head did. Every number is that of the full matrix of weights; B and H may be 1 in `expected...`.

    >>> import torch
    >>> from rearview.attention import statistics
    >>> statistics(torch.zeros(1, 2, 6, 8), torch.zeros(1, 2, 6, 8))
    Statistics(1 x 2 heads x 6 queries over 6 keys, map 6 x 6 in bins of 1, 32 links a head)
    """

    frame: Frame
    """How many queries and keys, and where they stand."""
    lse: Tensor
    """[B, H, Q] log-sum-exp: a weight is exp(score - lse). -inf where a query hears nothing."""
    entropy: Tensor
    """[B, H, Q] -sum of w log w over the keys, in nats. 0 where a query hears nothing."""
    received: Tensor
    """[B, H, K] the mass that each key received: the sum over queries."""
    expected: Tensor
    """[B or 1, H or 1, K] what it would receive if every query heard its keys alike."""
    first: Tensor
    """[B, H, Q, 3] the mass on the first 1, 4 and 8 keys."""
    distance: Tensor
    """[B, H, Q] sum of weight x (query position - key position); negative where a query looks ahead."""
    histogram: Tensor
    """[B, H, bins] mass by that distance, summed over queries. Bin 0 is the future; bin n is from edges[n - 1] up to,
    and without, edges[n]."""
    histogram_edges: tuple[int, ...]
    """0, 1, 2, 4, 8, ..."""
    links: Links
    """The largest weights of each head."""
    links_kept: int
    """How many links were asked for."""
    map: Tensor | None
    """[B, H, rows, columns] sums of the weights of (query bin x key bin). Bins are counted from position 0 (those of
    queries from the first query where it stands before 0)."""
    rows_heard: Tensor | None
    """[B, H, rows] queries of each bin that hear anything."""
    expected_map: Tensor | None
    """[B or 1, H or 1, rows, columns] what `map` would be if every query heard its keys alike."""
    map_size: int | None
    """At most so many bins a side."""
    bin_width: int
    """Positions a bin; 0 when there is no map."""

    def pooled(self) -> Tensor:
        """The map: summed over the keys of a bin, the mean over its queries. Rows sum to 1; empty ones are 0.

        >>> import torch
        >>> from rearview.attention import statistics
        >>> x = torch.zeros(1, 1, 4, 8)
        >>> statistics(x, x, map_size=2).pooled()[0, 0].tolist()    # bins of 2: (1 + 1) / 2, then 2/3 and 2/4
        [[1.0, 0.0], [0.5833333730697632, 0.4166666865348816]]
        """
        sums = self._has_map(self.map)
        return sums / self._has_map(self.rows_heard).clamp(min=1).unsqueeze(-1)

    def expected_pooled(self) -> Tensor:
        """What `pooled` would be if every query heard its keys alike."""
        sums = self._has_map(self.expected_map)
        # Each query that hears anything gives 1 in all.
        heard = sums.sum(-1, keepdim=True)
        return sums / heard.masked_fill(heard == 0, 1)

    def joined(self, *later: Statistics) -> Statistics:
        """This and what came `later` in the same sequence, as if it had been one call: steps of generation.

        >>> import torch
        >>> from rearview.attention import statistics
        >>> x = torch.randn(1, 2, 6, 8)
        >>> prompt = statistics(x[:, :, :5], x[:, :, :5])
        >>> step = statistics(x[:, :, 5:], x, bin_width=prompt.bin_width)
        >>> torch.allclose(prompt.joined(step).received, statistics(x, x).received)
        True
        """
        from rearview.attention.statistics.join import joined

        return joined(self, later)

    def _has_map(self, field: Tensor | None) -> Tensor:
        if field is None:
            raise BadArgument("map_size", expected="a map, for its pooled form", came=None, advice="Give map_size=64.")
        return field

    def __repr__(self) -> str:
        batch, heads = self.lse.shape[:2]
        about = f"{batch} x {heads} heads x {self.frame.q_len} queries over {self.frame.k_len} keys"
        size = "no map"
        if self.map is not None:
            size = f"map {self.map.shape[-2]} x {self.map.shape[-1]} in bins of {self.bin_width}"
        return f"Statistics({about}, {size}, {self.links.weight.shape[-1]} links a head)"
