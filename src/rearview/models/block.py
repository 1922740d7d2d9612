"""The transformer block that GPT, BERT and T5 share, and what running a stack of blocks needs.

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
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rearview.attention import KeyValueCache
from rearview.attention.positions import Rotation
from rearview.attention.sequence_shard import SequenceShard, activated, active_shard
from rearview.errors import BadArgument
from rearview.masks import Mask, along
from rearview.models.attention import CrossAttention, SelfAttention
from rearview.models.feedforward import FeedForward


@dataclass(frozen=True)
class BlockShape:
    """The sizes and options of a block. `norm_first` normalizes before each part (GPT, T5), not after the sum
    (BERT)."""

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
    """Self-attention, optional cross attention, and feed-forward, each with a residual connection."""

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
        rotation: Rotation | None = None,
        bias: Tensor | None = None,
        cache: KeyValueCache | None = None,
        memory: tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask | None = None,
    ) -> Tensor:
        normed = self._before(x, self.attention_norm)
        heard = self.attention(normed, mask=mask, rotation=rotation, bias=bias, cache=cache)
        x = self._add(x, heard, self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            assert memory is not None, "a block with cross attention needs the keys and values of the encoder"
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
    """A list of blocks, typed as such."""

    def __iter__(self) -> Iterator[Block]:
        for block in super().__iter__():
            assert isinstance(block, Block)
            yield block


def narrowed_masks(
    masks: tuple[Mask, ...],
    narrowing: Mask | None,
    cache: list[KeyValueCache] | None,
    paths: Mask | None = None,
) -> tuple[Mask, ...]:
    """The mask of each layer in this call. Layers that share a mask share the result, which caches its ranges.

    >>> from rearview import causal, documents, tree, window
    >>> narrowed_masks((causal(), causal() & window(2)), documents([0, 0, 1]), None)
    (causal() & documents([0, 0, 1]), causal() & window(2) & documents([0, 0, 1]))
    >>> narrowed_masks((window(2),), None, None, paths=tree([-1, 0, 0]))
    (along(tree([-1, 0, 0]), window(2)),)
    """
    if narrowing is not None and not isinstance(narrowing, Mask):
        raise BadArgument("mask", expected="a Mask such as documents(ids)", got=type(narrowing).__name__)
    if narrowing is None and paths is None and (not cache or cache[0].starts is None):
        return masks
    narrowed: dict[int, Mask] = {}
    for mask in masks:
        if id(mask) not in narrowed:
            both = mask if paths is None else along(paths, mask)
            both = both if narrowing is None else both & narrowing
            narrowed[id(mask)] = cache[0].placed(both) if cache else both
    return tuple(narrowed[id(mask)] for mask in masks)


def run_block(block: Block, x: Tensor, *, recompute: bool, **options: object) -> Tensor:
    """`block(x, **options)`; with `recompute`, activations are recomputed in the backward pass and not stored."""
    if recompute and block.training and torch.is_grad_enabled():
        return checkpoint(partial(_run_again, block, active_shard(), **options), x, use_reentrant=False)
    return block(x, **options)


def _run_again(block: Block, shard: SequenceShard | None, x: Tensor, **options: object) -> Tensor:
    # The backward pass, which calls this again, may come after the block in which the layout was active.
    with activated(shard):
        return block(x, **options)
