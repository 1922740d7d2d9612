"""A plain PyTorch GPT with nn.Linear and scaled_dot_product_attention, as the rival of ours.

>>> import torch
>>> PlainGPT(vocab_size=65, context=8, layers=1, heads=2, width=8)(torch.tensor([[1, 2, 3]])).shape
torch.Size([1, 3, 65])
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainBlock(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, block_mask: object = None) -> Tensor:
        batch, time, width = x.shape
        query, key, value = self.qkv(self.norm_1(x)).split(width, dim=2)
        query, key, value = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in (query, key, value))
        if block_mask is None:
            heard = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            # It imports the compiler, which takes seconds.
            from torch.nn.attention.flex_attention import flex_attention

            heard = flex_attention(query, key, value, block_mask=block_mask)  # pyright: ignore[reportCallIssue, reportArgumentType]
        x = x + self.proj(heard.transpose(1, 2).contiguous().view(batch, time, width))
        return x + self.out(F.gelu(self.wide(self.norm_2(x))))


class PlainGPT(nn.Module):
    def __init__(self, *, vocab_size: int, context: int, layers: int, heads: int, width: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(PlainBlock(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                into_the_sum = name.endswith(("proj.weight", "out.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if into_the_sum else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, tokens: Tensor, block_mask: object = None) -> Tensor:
        """The logits. With a `BlockMask`, attention is FlexAttention with it; otherwise causal."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x, block_mask)
        return self.head(self.norm(x))
