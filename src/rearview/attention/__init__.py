"""attend(): the plan, the engines, and the layer around them."""

from rearview.attention.attend import attend, weights
from rearview.attention.bias import Alibi, alibi
from rearview.attention.cache import KeyValueCache
from rearview.attention.layer import MaskedSelfAttention
from rearview.attention.plan import Plan, plan

__all__ = ["Alibi", "KeyValueCache", "MaskedSelfAttention", "Plan", "alibi", "attend", "plan", "weights"]
