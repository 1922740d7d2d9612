"""Rearview: masked attention you can run, see and prove."""

from rearview.attention import KeyValueCache, MaskedSelfAttention, Plan, alibi, attend, plan, weights
from rearview.errors import RearviewError, Unsupported
from rearview.explain import Trace, explain
from rearview.masks import (
    Mask,
    Spans,
    causal,
    chunks,
    dense,
    dilated,
    documents,
    full,
    padding,
    per_head,
    prefix,
    where,
    window,
)

__version__ = "0.1.0"

__all__ = [
    "KeyValueCache",
    "Mask",
    "MaskedSelfAttention",
    "Plan",
    "RearviewError",
    "Spans",
    "Trace",
    "Unsupported",
    "alibi",
    "attend",
    "causal",
    "chunks",
    "dense",
    "dilated",
    "documents",
    "explain",
    "full",
    "padding",
    "per_head",
    "plan",
    "prefix",
    "weights",
    "where",
    "window",
]
