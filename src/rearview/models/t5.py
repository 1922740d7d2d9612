"""T5: an encoder with full attention, and a decoder that hears its own past and the encoder.

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
from rearview.masks.frame import whole_number
from rearview.models.block import Block, Blocks, BlockShape, narrowed_masks, run_block
from rearview.models.model import Model
from rearview.models.positions import RelativeBias
from rearview.models.validation import check_divides, check_sizes, embed


@dataclass(frozen=True)
class T5Config:
    """The sizes and options of a T5, by default those of v1.1 (gated GELU, a head that is not tied).

    v1.0 is `gated=False, activation="relu", tied=True, scaled=True`.

    Args:
        layers, decoder_layers: number of blocks of the encoder and of the decoder; the same by default.
        head_dim: number of features per head, by default width / heads.
        tied: whether the head shares the weight of the embedding.
        scaled: whether the input of the head is divided by sqrt(width).
        buckets, furthest: number of buckets and largest distance of the relative positions.
        start_id: the token that the decoder starts from.
        end_id: the token that ends an answer.
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
            check_divides(self, width="heads")
        # Fewer would leave no bucket for a single distance, and `furthest` is beyond those.
        whole_number(self.buckets, "buckets", at_least=4)
        whole_number(self.furthest, "furthest", at_least=self.buckets // 2 + 1)
        whole_number(self.start_id, "start_id", at_least=0)
        if self.end_id is not None:
            whole_number(self.end_id, "end_id", at_least=0)

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
            # T5 does not scale its scores; its initialization makes up for it.
            scale=1.0,
            dropout=self.dropout,
        )


@dataclass(frozen=True)
class EncoderMemory:
    """What the decoder needs of the encoder: keys and values for each of its layers, and the mask of the prompt."""

    keys_values: list[tuple[Tensor, Tensor]]
    mask: Mask


class Stack(nn.Module):
    """The encoder or the decoder: blocks that share one table of relative positions, and a final norm."""

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
        memory: EncoderMemory | None = None,
    ) -> Tensor:
        held = len(cache[0]) if cache else 0
        bias = self.relative(x.shape[1], held + x.shape[1])
        (narrowed,) = narrowed_masks((causal() if self.decoder else full(),), mask, cache)
        x = self.dropout(x)
        for n, block in enumerate(self.blocks):
            x = run_block(
                block,
                x,
                recompute=self.gradient_checkpointing,
                mask=narrowed,
                bias=bias,
                cache=cache[n] if cache else None,
                memory=memory.keys_values[n] if memory else None,
                memory_mask=memory.mask if memory else None,
            )
        return self.dropout(self.norm(x))


class T5(Model):
    """Tokens and decoder tokens, each [batch, time] -> logits of the next decoder token."""

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
        self._initialize()

    def forward(
        self,
        tokens: Tensor,
        decoder_tokens: Tensor,
        *,
        mask: Mask | None = None,
        decoder_mask: Mask | None = None,
    ) -> Tensor:
        """Compute the logits.

        Args:
            mask: which of `tokens` may be heard, by the encoder and by the decoder, such as `padding(...)`.
            decoder_mask: narrows the causal mask of the decoder.
        """
        return self.decode(decoder_tokens, self.encode(tokens, mask=mask), mask=decoder_mask)

    def encode(self, tokens: Tensor, *, mask: Mask | None = None) -> EncoderMemory:
        """Run the encoder, once for all steps of the decoder."""
        encoded = self.encoder(embed(self.tokens, tokens), mask=mask)
        keys_values = [block.cross.keys_values(encoded) for block in self.decoder.blocks if block.cross is not None]
        return EncoderMemory(keys_values, full() if mask is None else mask)

    def decode(
        self,
        tokens: Tensor,
        memory: EncoderMemory,
        *,
        mask: Mask | None = None,
        cache: list[KeyValueCache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """The logits of the decoder. With a `cache`, `tokens` continue what it holds."""
        x = self.decoder(embed(self.tokens, tokens, "decoder_tokens"), mask=mask, cache=cache, memory=memory)
        x = x[:, -1:] if last_only else x
        return self.head(x * self.config.width**-0.5 if self.config.scaled else x)

    def new_cache(self, batch: int, max_len: int) -> list[KeyValueCache]:
        """Empty caches, one per layer of the decoder."""
        return [block.attention.new_cache(batch, max_len) for block in self.decoder.blocks]

    @property
    def gradient_checkpointing(self) -> bool:
        """Whether the activations inside the blocks are recomputed in the backward pass instead of stored."""
        return self.encoder.gradient_checkpointing

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, on: bool) -> None:
        self.encoder.gradient_checkpointing = self.decoder.gradient_checkpointing = on

    @torch.no_grad()
    def _initialize(self) -> None:
        # As in T5: standard deviation 1 / sqrt(inputs), and queries smaller by sqrt(head_dim), since scores are not
        # scaled.
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
