"""BERT: every position hears every other, and the model predicts masked tokens.

>>> import torch
>>> from rearview.models import BERT, BERTConfig
>>> model = BERT(BERTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32))
>>> model(torch.tensor([[1, 2, 3]])).shape
torch.Size([1, 3, 65])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rearview.attention.positions import sequence_positions
from rearview.attention.sequence_shard import active_shard
from rearview.masks import Mask, full
from rearview.models.block import Block, Blocks, BlockShape, narrowed_masks, run_block
from rearview.models.feedforward import ACTIVATIONS
from rearview.models.model import Model, initialize
from rearview.models.validation import check_context, check_divides, check_sizes, embed


@dataclass(frozen=True)
class BERTConfig:
    """The sizes of a BERT, named as in `GPTConfig`. `segments` is the number of segment embeddings."""

    vocab_size: int
    context: int = 512
    layers: int = 4
    heads: int = 4
    width: int = 128
    hidden: int | None = None
    segments: int = 2
    activation: str = "gelu"
    norm_eps: float = 1e-12
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "context", "layers", "heads", "width", "hidden", "segments")
        check_divides(self, width="heads")

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            width=self.width,
            heads=self.heads,
            hidden=self.hidden or 4 * self.width,
            activation=self.activation,
            norm_eps=self.norm_eps,
            norm_first=False,
            dropout=self.dropout,
        )


class BERT(Model):
    """Tokens [batch, time] -> logits of the token at each position, [batch, time, vocab_size]."""

    config: BERTConfig
    # True recomputes the activations inside the blocks in the backward pass instead of storing them.
    gradient_checkpointing = False

    def __init__(self, config: BERTConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width)
        self.segments = nn.Embedding(config.segments, config.width)
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.drop = nn.Dropout(config.dropout)
        self.blocks = Blocks(Block(config.block) for _ in range(config.layers))
        self.last = nn.Linear(config.width, config.width)
        self.last_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.head.weight = self.tokens.weight
        self.apply(initialize)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
    ) -> Tensor:
        """Compute the logits.

        Args:
            mask: which keys may be heard in this call, such as `padding(...)` or `documents(...)`; all by default.
            positions: [time] or [batch, time], by default 0, 1, 2, ...; in packed documents each starts at 0.
            segments: the segment of each token, [batch, time]; 0 by default.
        """
        x = embed(self.tokens, tokens)
        shard = active_shard()
        check_context(tokens.shape[1] if shard is None else shard.length, self.config.context)
        if positions is None:
            positions = sequence_positions(tokens)
        segments = torch.zeros_like(tokens) if segments is None else segments
        x = x + self.positions(positions) + embed(self.segments, segments, "segments")
        x = self.drop(self.norm(x))
        (mask,) = narrowed_masks((full(),), mask, None)
        for block in self.blocks:
            x = run_block(block, x, recompute=self.gradient_checkpointing, mask=mask)
        return self.head(self.last_norm(ACTIVATIONS[self.config.activation](self.last(x))))
