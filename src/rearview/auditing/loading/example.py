"""An example of a function for `rearview audit`: it returns a model and inputs for it.

>>> model, inputs = build()
>>> list(model(inputs).shape)
[2, 16, 4]
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class PastOnly(nn.Module):
    """A convolution that is padded on the left only."""

    def __init__(self, dim: int = 4, kernel: int = 3):
        super().__init__()
        self.reach = kernel - 1
        self.conv = nn.Conv1d(dim, dim, kernel)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(pad(x.transpose(1, 2), (self.reach, 0))).transpose(1, 2)


def build() -> tuple[nn.Module, Tensor]:
    """The model, and two sequences of sixteen frames."""
    return PastOnly(), torch.randn(2, 16, 4)
