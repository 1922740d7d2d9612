"""What attention does, in numbers of fixed size: statistics of the weights, without ever holding all of them.

    >>> import torch
    >>> from rearview import causal
    >>> from rearview.attention import statistics
    >>> q = k = torch.eye(4)
    >>> seen = statistics(q, k, mask=causal())
    >>> [round(mass, 3) for mass in seen.received[0, 0].tolist()]    # what each key received; 4 queries gave 1 each
    [1.867, 1.112, 0.667, 0.355]

The scores are computed again, from query and key, a strip of queries at a time; everything is derived from the strip
before the next one takes its place. So it works whatever kernel ran the attention, at any length.
"""

from rearview.attention.statistics.links import Links
from rearview.attention.statistics.measure import statistics
from rearview.attention.statistics.result import FIRST, Statistics
from rearview.attention.statistics.tile import weights_tile

__all__ = ["FIRST", "Links", "Statistics", "statistics", "weights_tile"]
