"""Masked attention: `attend`, its plan and engines, the layer with its cache, and statistics of the weights."""

from rearview.attention.bias import Alibi, alibi
from rearview.attention.cache import KeyValueCache
from rearview.attention.functional import attend, weights
from rearview.attention.layer import MaskedSelfAttention
from rearview.attention.paged_cache import PagedCache
from rearview.attention.pages import Pages
from rearview.attention.planner import Plan, plan
from rearview.attention.stats import Links, Statistics, statistics, weights_tile

__all__ = [
    "Alibi",
    "KeyValueCache",
    "Links",
    "MaskedSelfAttention",
    "PagedCache",
    "Pages",
    "Plan",
    "Statistics",
    "alibi",
    "attend",
    "plan",
    "statistics",
    "weights",
    "weights_tile",
]
