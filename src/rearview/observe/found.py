"""An attention layer that was found in a model, and one call of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Found:
    """A layer by name; `kind` as in `Layer`, `heads` of its queries (None: not known before it runs)."""

    name: str
    module: nn.Module
    kind: str
    heads: int | None


@dataclass(frozen=True, eq=False)
class Sight:
    """One call of a layer.

    Args:
        query, key: [batch, heads, time, dim], as the layer has them.
        is_cross: are the keys of another sequence?
        options: mask, q_start, bias, scale, softcap, sinks, as `statistics` takes them.
        at: the position of the first query in the sequence, where the layer's own keys do not tell.
        dropped: keys of the sequence before the first that are no longer there.
    """

    query: Tensor
    key: Tensor
    is_cross: bool
    options: dict[str, Any] = field(default_factory=dict)
    at: int | None = None
    dropped: int = 0
