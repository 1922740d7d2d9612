"""Models that choose for each query the keys that it may hear: their choice, as a mask.

    >>> import torch
    >>> chosen(torch.tensor([[[0], [0], [2]]]), k_len=3).int().tolist()
    [[[[1, 0, 0], [1, 0, 0], [0, 0, 1]]]]

For eager attention and SDPA such a model writes the choice into the mask. Any other implementation gets the mask as it
was, and the choice beside it, as `indices` of keys or `block_indices`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import Unsupported


def chosen(indices: Tensor, *, k_len: int) -> Tensor:
    """Bool [batch, 1, query, key], True at the keys in `indices` [batch, query, choice]."""
    none = torch.zeros(*indices.shape[:2], k_len, dtype=torch.bool, device=indices.device)
    return none.scatter(-1, indices.long(), True).unsqueeze(1)


def with_blocks(module: nn.Module, block_indices: Tensor, attention_mask: Any, query: Tensor, key: Tensor) -> Tensor:
    """The mask with the choice of blocks in it, made by the module as it makes it for eager attention."""
    made = getattr(getattr(module, "indexer", None), "build_block_mask", None)
    if made is None or attention_mask is None:
        raise Unsupported(
            f"{type(module).__name__} with block_indices",
            ["the module does not say how large a block is, or has no mask to put the blocks into"],
            advice='Use model.set_attn_implementation("sdpa").',
        )
    return made(block_indices, attention_mask, key.shape[2], query.dtype, query.device, None)
