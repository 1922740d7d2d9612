"""attend(): the plan, the engines, the layer around them, and statistics of what they do."""

from rearview.attention.attend import attend, weights
from rearview.attention.bias import Alibi, alibi
from rearview.attention.cache import KeyValueCache
from rearview.attention.layer import MaskedSelfAttention
from rearview.attention.plan import Plan, plan
from rearview.attention.statistics import Links, Statistics, statistics, weights_tile

__all__ = [
    "Alibi",
    "KeyValueCache",
    "Links",
    "MaskedSelfAttention",
    "Plan",
    "Statistics",
    "alibi",
    "attend",
    "plan",
    "statistics",
    "weights",
    "weights_tile",
]
