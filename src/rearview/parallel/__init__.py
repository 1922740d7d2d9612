"""A sequence over several devices, for every mask with ranges: the layout, and attention on it.

>>> from rearview import causal
>>> from rearview.parallel import shard
>>> layout = shard(causal(), length=65_536, ranks=8)
>>> round(layout.balance, 2), layout.how
(1.0, 'head-tail')
"""

from rearview.parallel.layout import Layout
from rearview.parallel.sharding import shard
from rearview.parallel.spread_model import SpreadModel

__all__ = ["Layout", "SpreadModel", "shard"]
