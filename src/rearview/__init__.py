"""Rearview: masked attention you can run, see and prove.

A public name loads its part of the package when it is first used, so `import rearview` and `rearview --help` are quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rearview.attention import (
        KeyValueCache,
        MaskedSelfAttention,
        PagedCache,
        Pages,
        Plan,
        alibi,
        attend,
        plan,
        statistics,
        weights,
    )
    from rearview.auditing import audit
    from rearview.errors import RearviewError, Unsupported
    from rearview.explanation import Trace, explain
    from rearview.intervention import masked
    from rearview.masks import (
        Mask,
        Spans,
        along,
        block_diffusion,
        causal,
        chunks,
        dense,
        dilated,
        documents,
        full,
        grid_window,
        padding,
        per_head,
        prefix,
        ranges,
        shared_prefix,
        tree,
        where,
        window,
    )
    from rearview.masks.exchange.tensors import from_additive, from_bool
    from rearview.masks.inspection.difference import diff
    from rearview.observation import observe
    from rearview.webapp import studio

__version__ = "0.2.0"

__all__ = [
    "KeyValueCache",
    "Mask",
    "MaskedSelfAttention",
    "PagedCache",
    "Pages",
    "Plan",
    "RearviewError",
    "Spans",
    "Trace",
    "Unsupported",
    "alibi",
    "along",
    "attend",
    "audit",
    "block_diffusion",
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
    "grid_window",
    "masked",
    "observe",
    "padding",
    "per_head",
    "plan",
    "prefix",
    "ranges",
    "shared_prefix",
    "statistics",
    "studio",
    "tree",
    "weights",
    "where",
    "window",
]

# The module of each public name; names that are not listed are in `rearview.masks`.
_MODULES = {
    "KeyValueCache": "attention",
    "MaskedSelfAttention": "attention",
    "PagedCache": "attention",
    "Pages": "attention",
    "Plan": "attention",
    "alibi": "attention",
    "attend": "attention",
    "plan": "attention",
    "statistics": "attention",
    "weights": "attention",
    "audit": "auditing",
    "RearviewError": "errors",
    "Unsupported": "errors",
    "Trace": "explanation",
    "explain": "explanation",
    "diff": "masks.inspection.difference",
    "from_additive": "masks.exchange.tensors",
    "from_bool": "masks.exchange.tensors",
    "masked": "intervention",
    "observe": "observation",
    "studio": "webapp",
}
# Packages that can be used as `rearview.masks` without an import of their own.
_PARTS = {
    "attention", "auditing", "comparison", "drawing", "errors", "explanation", "files", "generation", "integrations",
    "intervention", "masks", "models", "observation", "parallel", "testing", "text", "training", "webapp",
}  # fmt: skip

if not TYPE_CHECKING:
    # Hidden from type checkers, which would otherwise accept any name.

    def __getattr__(name: str) -> object:
        if name in _PARTS:
            return import_module(f"rearview.{name}")
        if name not in __all__:
            raise AttributeError(f"module 'rearview' has no attribute {name!r}")
        value = getattr(import_module(f"rearview.{_MODULES.get(name, 'masks')}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
