"""Rearview: masked attention you can run, see and prove."""

from rearview.attention import KeyValueCache, MaskedSelfAttention, Plan, alibi, attend, plan, weights
from rearview.audit import audit
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
from rearview.masks.compare import diff
from rearview.masks.exchange.tensors import from_additive, from_bool
from rearview.observe import observe

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
    "audit",
    "causal",
    "chunks",
    "dense",
    "diff",
    "dilated",
    "documents",
    "explain",
    "from_additive",
    "from_bool",
    "full",
    "observe",
    "padding",
    "per_head",
    "plan",
    "prefix",
    "weights",
    "where",
    "window",
]
