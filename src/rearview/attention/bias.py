"""Biases that are added to the scores before the mask: a tensor, which may require gradients, or ALiBi.

>>> import torch
>>> from rearview import alibi
>>> alibi(2).tile(torch.tensor([3]), torch.arange(4))[0].tolist()    # head 0, the query at position 3
[[-0.1875, -0.125, -0.0625, -0.0]]
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.data import as_data
from rearview.masks.frame import whole_number


@dataclass(frozen=True, eq=False)
class Alibi:
    """-slope x distance, with one slope per query head (https://arxiv.org/abs/2108.12409, figure 3)."""

    slopes: Tensor

    def tile(self, query_positions: Tensor, key_positions: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The bias of these queries and keys in this dtype: [heads, queries, keys]."""
        distance = (query_positions.unsqueeze(-1) - key_positions).abs()
        return -self.slopes.to(query_positions.device, dtype).view(-1, 1, 1) * distance

    def __repr__(self) -> str:
        return f"alibi(<{len(self.slopes)} slopes>)"


def alibi(heads: int | Sequence[float] | Tensor) -> Alibi:
    """ALiBi for a number of heads (the paper's geometric slopes), or with given slopes, one per head, in float32.

    >>> alibi(4).slopes.tolist()
    [0.25, 0.0625, 0.015625, 0.00390625]
    """
    if isinstance(heads, int):
        count = whole_number(heads, "alibi(heads)", at_least=1)
        # The paper's rule for a power of two. For other numbers of heads it takes the slopes of the next smaller power
        # and, for the remaining heads, every other slope of the next larger one.
        below = 1 << (count.bit_length() - 1)
        slopes = [2.0 ** (-8.0 * (i + 1) / below) for i in range(below)]
        slopes += [2.0 ** (-4.0 * (i + 1) / below) for i in range(0, 2 * (count - below), 2)]
        return Alibi(torch.tensor(slopes))
    expected = "a number of heads, or constant float slopes [heads]"
    slopes = as_data(heads, "alibi(heads)", expected=expected)
    learns = isinstance(heads, Tensor) and heads.requires_grad
    if slopes.ndim != 1 or slopes.numel() == 0 or not slopes.is_floating_point() or learns:
        raise BadArgument(
            "alibi(heads)",
            expected=expected,
            got=repr(heads),
            advice="For learned slopes pass a bias tensor: bias=-slopes.view(1, -1, 1, 1) * distance.",
        )
    # Every engine computes with the same slopes, and kernels read them in float32.
    return Alibi(slopes.float())
