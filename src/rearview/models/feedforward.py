"""The feed-forward part of a block: a wide layer, an activation, and a projection back, for each position.

>>> import torch
>>> FeedForward(8, 32, activation="gelu", gated=True)(torch.randn(1, 5, 8)).shape
torch.Size([1, 5, 8])
"""

from collections.abc import Callable
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from rearview.attention.engines.native import rows
from rearview.models.linear import Linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class FeedForward(nn.Module):
    """Two linear layers with an activation between. If `gated`, half of the wide features gates the other half."""

    # Set by `GPT.batch_invariant`.
    batch_invariant = False

    def __init__(self, width: int, hidden: int, *, activation: str, gated: bool = False, bias: bool = True):
        super().__init__()
        self.activation, self.gated = activation, gated
        self.wide = Linear(width, 2 * hidden if gated else hidden, bias=bias)
        self.out = Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        wide = self.wide(x)
        if self.gated:
            gate, wide = wide.chunk(2, dim=-1)
            wide = self._activate(gate) * wide
        else:
            wide = self._activate(wide)
        return self.out(wide)

    def _activate(self, x: Tensor) -> Tensor:
        return rows.activation(x, self.activation) if self.batch_invariant else ACTIVATIONS[self.activation](x)
