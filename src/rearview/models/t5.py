"""T5: an encoder where everyone hears everyone, and a decoder that looks back, and at the encoder.

>>> import torch
>>> from rearview.models import T5, T5Config
>>> model = T5(T5Config(vocab_size=65, layers=2, heads=4, width=32))
>>> model(torch.tensor([[1, 2, 3]]), torch.tensor([[0, 4]])).shape
torch.Size([1, 2, 65])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rearview.attention import KeyValueCache
from rearview.masks import Mask, causal, full
from rearview.models.block import Block, Blocks, BlockShape
from rearview.models.check import check_share, check_sizes, embed
from rearview.models.model import Model
from rearview.models.relative import RelativeBias
from rearview.models.run import join, run_block


@dataclass(frozen=True)
class T5Config:
    """The shape of a T5: by default that of v1.1 (gated GELU, a head of its own).

    v1.0 is `gated=False, activation="relu", tied=True, scaled=True`.

    Args:
        tied: is the head the embedding? `scaled`: is what meets it divided by sqrt(width)?
        layers, decoder_layers: blocks of the encoder and of the decoder, as many unless given.
        head_dim: features of a head, width / heads unless given.
        buckets, furthest: of the relative positions.
        start_id: what the decoder starts from; `end_id`: what ends an answer.
    """

    vocab_size: int
    layers: int = 4
    decoder_layers: int | None = None
    heads: int = 4
    width: int = 128
    head_dim: int | None = None
    hidden: int | None = None
    gated: bool = True
    activation: str = "gelu_tanh"
    tied: bool = False
    scaled: bool = False
    buckets: int = 32
    furthest: int = 128
    norm_eps: float = 1e-6
    dropout: float = 0.0
    start_id: int = 0
    end_id: int | None = 1

    def __post_init__(self) -> None:
        sizes = (
            "vocab_size",
            "layers",
            "decoder_layers",
            "heads",
            "width",
            "head_dim",
            "hidden",
            "buckets",
            "furthest",
        )
        check_sizes(self, *sizes)
        if self.head_dim is None:
            check_share(self, width="heads")

    @property
    def block(self) -> BlockShape:
        return BlockShape(
            width=self.width,
            heads=self.heads,
            hidden=self.hidden or 4 * self.width,
            head_dim=self.head_dim,
            activation=self.activation,
            gated=self.gated,
            bias=False,
            norm=nn.RMSNorm,
            norm_eps=self.norm_eps,
            # The scale is in the weights: T5 starts them small enough.
            scale=1.0,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class Memory:
    """What the decoder hears of the encoder: K and V for each of its layers, and who of it may be heard."""

    keys_values: list[tuple[Tensor, Tensor]]
    mask: Mask


class Stack(nn.Module):
    """The encoder or the decoder: blocks with one table of relative positions, and a last norm."""

    gradient_checkpointing = False

    def __init__(self, config: T5Config, layers: int, *, decoder: bool):
        super().__init__()
        self.decoder, self.dropout = decoder, nn.Dropout(config.dropout)
        self.relative = RelativeBias(
            config.heads, buckets=config.buckets, furthest=config.furthest, both_ways=not decoder
        )
        self.blocks = Blocks(Block(config.block, cross=decoder) for _ in range(layers))
        self.norm = config.block.new_norm()

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None,
        cache: list[KeyValueCache] | None = None,
        memory: Memory | None = None,
    ) -> Tensor:
        held = len(cache[0]) if cache else 0
        bias = self.relative(x.shape[1], held + x.shape[1])
        (joined,) = join((causal() if self.decoder else full(),), mask, cache)
        x = self.dropout(x)
        for n, block in enumerate(self.blocks):
            x = run_block(
                self,
                block,
                x,
                mask=joined,
                bias=bias,
                cache=cache[n] if cache else None,
                memory=memory.keys_values[n] if memory else None,
                memory_mask=memory.mask if memory else None,
            )
        return self.dropout(self.norm(x))


class T5(Model):
    """Tokens [batch, time] and decoder tokens [batch, time] -> logits of the decoder's next token."""

    config: T5Config

    def __init__(self, config: T5Config):
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocab_size, config.width)
        self.encoder = Stack(config, config.layers, decoder=False)
        self.decoder = Stack(config, config.decoder_layers or config.layers, decoder=True)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight
        self._start()

    def forward(
        self,
        tokens: Tensor,
        decoder_tokens: Tensor,
        *,
        mask: Mask | None = None,
        decoder_mask: Mask | None = None,
    ) -> Tensor:
        """The logits. `mask` says who of `tokens` may be heard (`padding(...)`), by the encoder and by the decoder.

        `decoder_mask` narrows the decoder's looking back.
        """
        return self.decode(decoder_tokens, self.encode(tokens, mask=mask), mask=decoder_mask)

    def encode(self, tokens: Tensor, *, mask: Mask | None = None) -> Memory:
        """What a decoder needs of `tokens`: made once, heard at every step."""
        encoded = self.encoder(embed(self.tokens, tokens), mask=mask)
        keys_values = [block.cross.remember(encoded) for block in self.decoder.blocks if block.cross is not None]
        return Memory(keys_values, full() if mask is None else mask)

    def decode(
        self,
        tokens: Tensor,
        memory: Memory,
        *,
        mask: Mask | None = None,
        cache: list[KeyValueCache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The logits of the decoder; with a `cache`, `tokens` continue what it holds."""
        x = self.decoder(embed(self.tokens, tokens, "decoder_tokens"), mask=mask, cache=cache, memory=memory)
        x = x[:, -1:] if last_only else x
        return self.head(x * self.config.width**-0.5 if self.config.scaled else x)

    def new_cache(self, batch: int, max_len: int) -> list[KeyValueCache]:
        """Empty caches, one for each layer of the decoder."""
        return [block.attention.new_cache(batch, max_len) for block in self.decoder.blocks]

    @property
    def gradient_checkpointing(self) -> bool:
        """Keep no activations inside the blocks, and compute them again in backward?"""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder.gradient_checkpointing = self.decoder.gradient_checkpointing = on

    @torch.no_grad()
    def _start(self) -> None:
        # T5's start: the usual 1 / sqrt(features in), and queries smaller by sqrt(head_dim), as no scale divides them.
        config = self.config
        nn.init.normal_(self.tokens.weight, std=1.0 if config.tied else config.width**-0.5)
        if not config.tied:
            nn.init.normal_(self.head.weight, std=config.width**-0.5)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module is not self.head:
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
        for stack in (self.encoder, self.decoder):
            nn.init.normal_(stack.relative.table.weight, std=config.width**-0.5)
            for block in stack.blocks:
                own, cross = block.attention, block.cross
                queries = [own.qkv.weight[: own.heads * own.head_dim]] + ([cross.query.weight] if cross else [])
                for query in queries:
                    query.mul_(own.head_dim**-0.5)
