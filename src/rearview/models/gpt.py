"""GPT: every position hears those before it, and predicts the next token.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=32, layers=2, heads=4, width=32))
>>> model(torch.tensor([[1, 2, 3]])).shape
torch.Size([1, 3, 65])

A windowed GPT is one argument, with rotary positions and grouped queries if you like:

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
from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.models.block import Block, Blocks, BlockShape
from rearview.models.check import check_context, check_share, check_sizes, embed
from rearview.models.model import Model, start_small
from rearview.models.rotary import turn_to
from rearview.models.run import join, run_block


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT; the defaults train in minutes on a laptop.

    Args:
        vocab_size: tokens.
        context: the most positions that it is given at once.
        layers, heads, width: blocks, query heads of each, features.
        kv_heads: key and value heads, `heads` unless given.
        hidden: features inside the feed-forward, 4 x width unless given.
        positions: "learned" (an embedding each, as GPT-2) or "rotary".
        mask: who may be heard: one mask for all layers, or a tuple with one a layer.
        dropout: of embeddings, attention weights and sums, when training.
        tied: is the output projection the embedding itself?
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
        check_share(self, width="heads", heads="kv_heads")
        if self.positions not in ("learned", "rotary"):
            raise BadArgument("positions", expected='"learned" or "rotary"', came=repr(self.positions))
        if self.positions == "rotary" and self.width // self.heads % 2:
            came = f"{self.width} / {self.heads} = {self.width // self.heads}"
            raise BadArgument(
                "width / heads", expected="an even number of features a head, to turn in pairs", came=came
            )
        masks = self.mask if isinstance(self.mask, tuple) else (self.mask,)
        if not all(isinstance(mask, Mask) for mask in masks):
            expected = "a Mask such as causal(), or a tuple with one for each layer"
            raise BadArgument("mask", expected=expected, came=repr(self.mask))
        if isinstance(self.mask, tuple) and len(self.mask) != self.layers:
            raise BadArgument("mask", expected=f"one mask for each of the {self.layers} layers", came=len(self.mask))

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
    """Tokens [batch, time] -> logits of the next token [batch, time, vocab_size]."""

    config: GPTConfig
    # Set it to True to keep no activations inside the blocks: they are computed again in backward.
    gradient_checkpointing = False

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.positions = nn.Embedding(config.context, config.width) if config.positions == "learned" else None
        self.drop = nn.Dropout(config.dropout)
        self.blocks = Blocks(Block(config.block) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self.apply(self._start)

    def forward(
        self,
        tokens: Tensor,
        *,
        mask: Mask | None = None,
        positions: Tensor | None = None,
        cache: list[KeyValueCache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The logits.

        Args:
            mask: narrows every layer's mask for this call: packed documents, padding.
            positions: [time] or [batch, time], 0, 1, 2 ... unless given; packed documents count from 0 each.
            cache: of `new_cache`; `tokens` then continue what it holds.
            last_only: logits of the last position only, [batch, 1, vocab_size].
        """
        x = embed(self.tokens, tokens)
        held = len(cache[0]) if cache else 0
        check_context(held + tokens.shape[1], self.config.context, held=held)
        if positions is None:
            positions = self._next_positions(tokens, cache)
        turn = None
        if self.positions is not None:
            x = x + self.positions(positions)
        else:
            config = self.config
            turn = turn_to(positions, head_dim=config.width // config.heads, base=config.rotary_base)
        x = self.drop(x)
        narrowed = join(self.config.masks, mask, cache)
        for n, block in enumerate(self.blocks):
            layer_cache = cache[n] if cache else None
            x = run_block(self, block, x, mask=narrowed[n], turn=turn, cache=layer_cache)
        return self.head(self.norm(x[:, -1:] if last_only else x))

    def new_cache(self, batch: int, max_len: int | None = None) -> list[KeyValueCache]:
        """Empty caches, one a layer, for `max_len` positions (the context, unless given)."""
        length = self.config.context if max_len is None else max_len
        return [block.attention.new_cache(batch, length) for block in self.blocks]

    def _next_positions(self, tokens: Tensor, cache: list[KeyValueCache] | None) -> Tensor:
        count = torch.arange(tokens.shape[1], device=tokens.device)
        if not cache:
            return count
        starts = cache[0].starts
        return count + len(cache[0]) if starts is None else count + starts.unsqueeze(1)

    def _start(self, module: nn.Module) -> None:
        # The projections into the sum are smaller still, so that depth does not blow it up.
        start_small(module)
        if isinstance(module, Block):
            for out in (module.attention.out, module.forward_part.out):
                nn.init.normal_(out.weight, std=0.02 / math.sqrt(2 * self.config.layers))
