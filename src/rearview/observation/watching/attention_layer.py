"""An attention layer of a model, as it is found before the model runs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True, eq=False)
class AttentionLayer:
    """A layer by name; `kind` as in `Layer`, `heads` the number of query heads (None: not known before it runs)."""

    name: str
    module: nn.Module
    kind: str
    heads: int | None
