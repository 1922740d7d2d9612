"""Statistics of attention weights in O(T) memory: the matrix of weights is never stored.

    >>> import torch
    >>> from rearview import causal, statistics
    >>> q = k = torch.eye(4)
    >>> seen = statistics(q, k, mask=causal())
    >>> [round(mass, 3) for mass in seen.received[0, 0].tolist()]    # what each key received; 4 queries gave 1 each
    [1.867, 1.112, 0.667, 0.355]

The scores are computed again from query and key, so it works with every engine and at any length. README.md describes
the parts.
"""

from rearview.attention.stats.links import Links
from rearview.attention.stats.measurement import statistics, statistics_of
from rearview.attention.stats.relative import relative_links
from rearview.attention.stats.result import Statistics
from rearview.attention.stats.sums import FIRST
from rearview.attention.stats.tile import tile_of, weights_tile

__all__ = ["FIRST", "Links", "Statistics", "relative_links", "statistics", "statistics_of", "tile_of", "weights_tile"]
