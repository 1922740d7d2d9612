"""Entries that are sorted by group: the place of each within its group.

>>> ranks(torch.tensor([0, 0, 2, 2, 2]), torch.tensor([2, 0, 3])).tolist()
[0, 1, 0, 1, 2]
"""

import torch
from torch import Tensor


def ranks(group: Tensor, size: Tensor) -> Tensor:
    """The place of each entry within its group. `group` is sorted, and `size` counts the entries of each group."""
    return torch.arange(len(group), device=group.device) - (size.cumsum(0) - size)[group]
