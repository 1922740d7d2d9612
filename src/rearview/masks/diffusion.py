"""The mask of block diffusion: a row holds a text with noise and then the same text without.

    >>> from rearview import block_diffusion
    >>> block_diffusion(4, 2).spans(8).rows()
    [[(0, 2)], [(0, 2)], [(2, 6)], [(2, 6)], [(4, 6)], [(4, 6)], [(4, 8)], [(4, 8)]]

From "Block Diffusion" (BD3-LM, https://arxiv.org/abs/2503.09573, section 3): all blocks are trained in one pass.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.masks.constructors import expression
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.spans import Spans


@family("block_diffusion")
class BlockDiffusion(Mask):
    is_arithmetic = True
    length: int
    size: int

    @property
    def own_length(self) -> int | None:
        return 2 * self.length

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        noisy_query, noisy_key = query < self.length, key < self.length
        of_query, of_key = self._block(query), self._block(key)
        noisy = noisy_key & noisy_query & (of_query == of_key)
        clean = ~noisy_key & torch.where(noisy_query, of_key < of_query, of_key <= of_query)
        known = (query >= 0) & (query < 2 * self.length) & (key < 2 * self.length)
        return (noisy | clean) & known

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        position = frame.query_positions(device)
        block = self._block(position) * self.size
        end = (block + self.size).clamp(max=self.length)
        noisy = position < self.length
        # Noisy queries hear their noisy block and the clean blocks before it, clean ones the clean blocks up to theirs.
        starts = torch.cat([torch.where(noisy, block, 0), torch.full_like(block, self.length)], -1)
        ends = torch.cat([torch.where(noisy, end, 0), self.length + torch.where(noisy, block, end)], -1)
        known = (position >= 0) & (position < 2 * self.length)
        return Spans.of(starts, ends * known, q_len=frame.q_len, k_len=frame.k_len)

    def _block(self, position: Tensor) -> Tensor:
        return torch.div(position % self.length, self.size, rounding_mode="floor")

    def __repr__(self) -> str:
        return f"block_diffusion({self.length}, {self.size})"


@expression("block_diffusion(length, n)")
def block_diffusion(length: int, n: int) -> Mask:
    """Block diffusion: `length` noisy tokens and then the same `length` tokens clean, in blocks of `n`.

    A noisy token hears its own noisy block and the clean blocks before it; a clean token hears the clean blocks up to
    its own. Positions beyond both texts hear nothing.

    >>> block_diffusion(2, 1).to_bool(4).int().tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    tokens = whole_number(length, "block_diffusion(length)", at_least=1)
    return BlockDiffusion(tokens, whole_number(n, "block_diffusion(n)", at_least=1))
