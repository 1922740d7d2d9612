"""The attention of a block: to itself, or from a decoder to what the encoder remembered.

>>> import torch
>>> from rearview import causal
>>> SelfAttention(8, 2)(torch.randn(1, 5, 8), mask=causal()).shape
torch.Size([1, 5, 8])
"""

from __future__ import annotations

from torch import Tensor, nn

from rearview.attention import KeyValueCache, attend
from rearview.masks import Mask, full
from rearview.models.linear import Linear
from rearview.models.rotary import Turn


class SelfAttention(nn.Module):
    """Q, K and V in one product, heads, `attend`, and the projection of what was heard.

    Fewer `kv_heads` than `heads` are grouped queries. `scale` is 1 / sqrt(head_dim) unless given.
    """

    # A watcher puts its own in the place of this one, in a layer that it watches.
    attend = staticmethod(attend)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or width // heads
        self.scale, self.dropout = scale, dropout
        self.qkv = Linear(width, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias)
        self.out = Linear(self.heads * self.head_dim, width, bias=bias)

    def project(self, x: Tensor, turn: Turn | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V by head: [batch, heads, time, head_dim]; Q and K turned to their positions."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return (query, key, value) if turn is None else (turn(query), turn(key), value)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        turn: Turn | None = None,
        bias: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        query, key, value = self.project(x, turn)
        if cache is not None:
            key, value = cache.append(key, value)
        dropout = self.dropout if self.training else 0.0
        heard = self.attend(query, key, value, mask=mask, bias=bias, scale=self.scale, dropout=dropout)
        return self.out(heard.transpose(1, 2).flatten(2))  # [batch, time, heads x head_dim]

    def new_cache(self, batch: int, max_len: int) -> KeyValueCache:
        weight = self.qkv.weight
        return KeyValueCache(
            batch=batch,
            heads=self.kv_heads,
            max_len=max_len,
            key_dim=self.head_dim,
            dtype=weight.dtype,
            device=weight.device,
        )


class CrossAttention(nn.Module):
    """From one sequence to another. The other's K and V are made once, by `remember`, and used for every step."""

    attend = staticmethod(attend)

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        head_dim: int | None = None,
        bias: bool = True,
        scale: float | None = None,
        dropout: float = 0.0,
    ):
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or width // heads
        self.scale, self.dropout = scale, dropout
        self.query = Linear(width, self.heads * self.head_dim, bias=bias)
        self.key_value = Linear(width, 2 * self.heads * self.head_dim, bias=bias)
        self.out = Linear(self.heads * self.head_dim, width, bias=bias)

    def remember(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """The K and V of an encoded sequence: [batch, heads, time, head_dim]."""
        key, value = self.key_value(encoded).unflatten(-1, (2, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return key, value

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], *, mask: Mask | None = None) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        heard = self.attend(
            query, *memory, mask=full() if mask is None else mask, q_start=0, scale=self.scale, dropout=dropout
        )
        return self.out(heard.transpose(1, 2).flatten(2))
