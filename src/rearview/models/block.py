"""The transformer block that GPT, BERT and T5 share. What makes them differ is the mask.

>>> import torch
>>> from rearview import causal, full
>>> block = Block(BlockShape(width=8, heads=2, hidden=32))
>>> x = torch.randn(1, 5, 8)
>>> changed = torch.cat([x[:, :4], torch.randn(1, 1, 8)], dim=1)
>>> torch.equal(block(x, mask=causal())[:, :4], block(changed, mask=causal())[:, :4])
True
>>> torch.equal(block(x, mask=full())[:, :4], block(changed, mask=full())[:, :4])
False
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from rearview.attention import KeyValueCache
from rearview.masks import Mask
from rearview.models.attention import CrossAttention, SelfAttention
from rearview.models.feedforward import FeedForward
from rearview.models.rotary import Turn


@dataclass(frozen=True)
class BlockShape:
    """Sizes and habits of a block. `norm_first` is GPT's and T5's order, normalising after the sum is BERT's."""

    width: int
    heads: int
    hidden: int
    kv_heads: int | None = None
    head_dim: int | None = None
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    norm: type[nn.LayerNorm] | type[nn.RMSNorm] = nn.LayerNorm
    norm_eps: float = 1e-5
    norm_first: bool = True
    scale: float | None = None
    dropout: float = 0.0

    def new_norm(self) -> nn.Module:
        return self.norm(self.width, eps=self.norm_eps)


class Block(nn.Module):
    """Self-attention, cross attention where there is an encoder to hear, feed-forward; each added to what it read."""

    def __init__(self, shape: BlockShape, *, cross: bool = False):
        super().__init__()
        self.norm_first, self.dropout = shape.norm_first, shape.dropout
        self.attention_norm = shape.new_norm()
        self.attention = SelfAttention(
            shape.width,
            shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            bias=shape.bias,
            scale=shape.scale,
            dropout=shape.dropout,
        )
        self.cross_norm = shape.new_norm() if cross else None
        self.cross = (
            CrossAttention(
                shape.width,
                shape.heads,
                head_dim=shape.head_dim,
                bias=shape.bias,
                scale=shape.scale,
                dropout=shape.dropout,
            )
            if cross
            else None
        )
        self.forward_norm = shape.new_norm()
        self.forward_part = FeedForward(
            shape.width,
            shape.hidden,
            activation=shape.activation,
            gated=shape.gated,
            bias=shape.bias,
        )

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        turn: Turn | None = None,
        bias: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask | None = None,
    ) -> Tensor:
        heard = self.attention(self._before(x, self.attention_norm), mask=mask, turn=turn, bias=bias, cache=cache)
        x = self._add(x, heard, self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            assert memory is not None, "a block with cross attention is given what the encoder remembered"
            heard = self.cross(self._before(x, self.cross_norm), memory, mask=memory_mask)
            x = self._add(x, heard, self.cross_norm)
        return self._add(x, self.forward_part(self._before(x, self.forward_norm)), self.forward_norm)

    def _before(self, x: Tensor, norm: nn.Module) -> Tensor:
        return norm(x) if self.norm_first else x

    def _add(self, x: Tensor, new: Tensor, norm: nn.Module) -> Tensor:
        if self.dropout and self.training:
            new = F.dropout(new, self.dropout)
        return x + new if self.norm_first else norm(x + new)


class Blocks(nn.ModuleList):
    """A stack of blocks, which a reader and a type checker know as such."""

    def __iter__(self) -> Iterator[Block]:
        for block in super().__iter__():
            assert isinstance(block, Block)
            yield block
