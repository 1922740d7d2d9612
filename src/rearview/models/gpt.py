"""GPT: every position hears itself and those before it, and predicts the next token.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32))
>>> model(torch.tensor([[1, 2, 3]])).shape
torch.Size([1, 3, 65])

Masks, rotary positions and grouped key heads are options of the config:

>>> from rearview import causal, window
>>> config = GPTConfig(vocab_size=65, heads=4, kv_heads=2, positions="rotary", mask=causal() & window(256))
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rearview.attention import KeyValueCache
from rearview.attention.engines.native.rows import check_rows
from rearview.attention.positions import next_positions, rotation_at
from rearview.attention.sequence_shard import active_shard
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.masks.paths import Paths
from rearview.models.attention import SelfAttention
from rearview.models.block import Block, Blocks, BlockShape, narrowed_masks, run_block
from rearview.models.feedforward import FeedForward
from rearview.models.linear import Linear
from rearview.models.model import Model, initialize
from rearview.models.positions import positions_along
from rearview.models.validation import check_context, check_divides, check_sizes, embed


@dataclass(frozen=True)
class GPTConfig:
    """The sizes and options of a GPT; the defaults train in minutes on a laptop.

    Args:
        vocab_size: number of tokens.
        context: largest number of positions.
        layers, heads, width: number of blocks, number of query heads per block, number of features.
        kv_heads: number of key and value heads, by default `heads`.
        hidden: number of features inside the feed-forward part, by default 4 x width.
        positions: "learned" (an embedding per position, as in GPT-2) or "rotary".
        mask: one mask for all layers, or a tuple with one per layer.
        dropout: probability for embeddings, attention weights and residual branches during training.
        tied: whether the output projection shares the weight of the embedding.
    """

    vocab_size: int
    context: int = 256
    layers: int = 4
    heads: int = 4
    width: int = 128
    kv_heads: int | None = None
    hidden: int | None = None
    positions: Literal["learned", "rotary"] = "learned"
    rotary_base: float = 10000.0
    mask: Mask | tuple[Mask, ...] = causal()
    activation: str = "gelu_tanh"
    bias: bool = True
    norm_eps: float = 1e-5
    dropout: float = 0.0
    tied: bool = True

    def __post_init__(self) -> None:
        check_sizes(self, "vocab_size", "context", "layers", "heads", "width", "kv_heads", "hidden")
        check_divides(self, width="heads", heads="kv_heads")
        if self.positions not in ("learned", "rotary"):
            raise BadArgument("positions", expected='"learned" or "rotary"', got=repr(self.positions))
        if self.positions == "rotary" and self.width // self.heads % 2:
            got = f"{self.width} / {self.heads} = {self.width // self.heads}"
            raise BadArgument("width / heads", expected="an even number of features per head", got=got)
        masks = self.mask if isinstance(self.mask, tuple) else (self.mask,)
        if not all(isinstance(mask, Mask) for mask in masks):
            expected = "a Mask such as causal(), or a tuple with one per layer"
            raise BadArgument("mask", expected=expected, got=repr(self.mask))
        if isinstance(self.mask, tuple) and len(self.mask) != self.layers:
            raise BadArgument("mask", expected=f"a tuple of {self.layers} masks, one per layer", got=len(self.mask))

    @property
    def masks(self) -> tuple[Mask, ...]:
        """The mask of each layer."""
        return self.mask if isinstance(self.mask, tuple) else (self.mask,) * self.layers

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            width=self.width,
            heads=self.heads,
            hidden=self.hidden or 4 * self.width,
            kv_heads=self.kv_heads,
            activation=self.activation,
            bias=self.bias,
            norm_eps=self.norm_eps,
            dropout=self.dropout,
        )


class GPT(Model):
    """Tokens [batch, time] -> logits of the next token, [batch, time, vocab_size]."""

    config: GPTConfig
    # True recomputes the activations inside the blocks in the backward pass instead of storing them.
    gradient_checkpointing = False

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width) if config.positions == "learned" else None
        self.drop = nn.Dropout(config.dropout)
        self.blocks = Blocks(Block(config.block) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = Linear(config.width, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self.apply(self._initialize)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        paths: Paths | None = None,
        cache: list[KeyValueCache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Compute the logits.

        Args:
            mask: narrows the mask of every layer in this call, for packed documents or padding.
            positions: [time] or [batch, time], by default 0, 1, 2, ... (on a layout of several ranks, the positions of
                this rank's rows); in packed documents each starts at 0.
            paths: the sequences that each row consists of, such as `tree(parents)`, for all positions including those
                in the cache. Every layer's mask then counts positions along them, and so does the default of
                `positions`.
            cache: caches from `new_cache`; `tokens` then continue what they hold.
            last_only: compute the logits of the last position only, [batch, 1, vocab_size].
        """
        x = embed(self.tokens, tokens)
        held = len(cache[0]) if cache else 0
        slots = next_positions(tokens, cache[0] if cache else None)
        if paths is None:
            shard = active_shard()
            length = held + tokens.shape[1] if shard is None else shard.length
            check_context(length, self.config.context, held=held)
            positions = slots if positions is None else positions
        else:
            along = positions_along(paths, slots)
            check_context(int(along.max()) + 1 if along.numel() else 0, self.config.context)
            positions = along if positions is None else positions
        rotation = None
        if self.positions is not None:
            x = x + self.positions(positions)
        else:
            config = self.config
            rotation = rotation_at(
                positions,
                head_dim=config.width // config.heads,
                base=config.rotary_base,
                batch_invariant=self.batch_invariant,
            )
        x = self.drop(x)
        recompute = self.gradient_checkpointing
        masks = narrowed_masks(self.config.masks, mask, cache, paths)
        for n, block in enumerate(self.blocks):
            layer_cache = cache[n] if cache else None
            x = run_block(block, x, recompute=recompute, mask=masks[n], rotation=rotation, cache=layer_cache)
        return self.head(self.norm(x[:, -1:] if last_only else x))

    @property
    def batch_invariant(self) -> bool:
        """Whether the bits of the logits at a position depend only on its own sequence.

        Then they are the same, bit for bit, alone and in any batch, in a prompt and in a step with a cache, and with
        any number of threads. It is for inference on a CPU in float32.

        >>> import torch
        >>> from rearview.attention.engines import native
        >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
        >>> model.batch_invariant = native.library.MISSING is None
        >>> tokens = torch.arange(20).view(2, 10)
        >>> with torch.no_grad():
        ...     several, alone = model(tokens), model(tokens[1:, :7])
        >>> torch.equal(several[1:, :7], alone) or not model.batch_invariant
        True
        """
        return self.head.batch_invariant

    @batch_invariant.setter
    def batch_invariant(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise BadArgument("batch_invariant", expected="True or False", got=repr(value))
        if value:
            with torch.no_grad():
                check_rows(*self.parameters())
        for part in self.modules():
            if isinstance(part, (Linear, FeedForward, SelfAttention)):
                part.batch_invariant = value

    def new_cache(
        self,
        batch: int,
        max_len: int | None = None,
        *,
        block_size: int | None = None,
        num_blocks: int | None = None,
    ) -> list[KeyValueCache]:
        """Empty caches, one per layer, for `max_len` positions (by default the context).

        With a block size they are in pages (`PagedCache`), and items that `take` makes from one item share its blocks.

        >>> import torch
        >>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32)).eval()
        >>> cache = model.new_cache(batch=1, block_size=4, num_blocks=20)
        >>> with torch.no_grad():
        ...     prompt = model(torch.tensor([[1, 2, 3, 4, 5, 6]]), cache=cache)
        ...     for layer in cache:
        ...         layer.take([0, 0, 0])    # three answers to one prompt
        ...     answers = model(torch.tensor([[7], [8], [9]]), cache=cache)
        >>> answers.shape, cache[0].blocks_in_use    # the first block is shared, and each answer has one of its own
        (torch.Size([3, 1, 65]), 4)
        """
        length = self.config.context if max_len is None else max_len
        return [
            block.attention.new_cache(batch, length, block_size=block_size, num_blocks=num_blocks)
            for block in self.blocks
        ]

    def _initialize(self, module: nn.Module) -> None:
        # Projections into the residual stream start smaller, so that its variance does not grow with depth.
        initialize(module)
        if isinstance(module, Block):
            for out in (module.attention.out, module.forward_part.out):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * self.config.layers))
