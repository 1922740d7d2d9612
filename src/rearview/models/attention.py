"""The attention layers of a block: self-attention, and cross attention from a decoder to an encoder.

>>> import torch
>>> from rearview import causal
>>> SelfAttention(8, 2)(torch.randn(1, 5, 8), mask=causal()).shape
torch.Size([1, 5, 8])
"""

from __future__ import annotations

from torch import Tensor, nn

from rearview.attention import KeyValueCache, attend
from rearview.attention.paged_cache import new_cache
from rearview.attention.positions import Rotation
from rearview.masks import Mask, full
from rearview.models.linear import Linear


class SelfAttention(nn.Module):
    """Multi-head self-attention: Q, K and V in one product, `attend`, and the output projection.

    With fewer `kv_heads` than `heads`, several query heads share a key head. `scale` is 1 / sqrt(head_dim) by default.
    """

    # `observe` replaces this attribute on the layers that it watches.
    attend = staticmethod(attend)
    # Set by `GPT.batch_invariant`.
    batch_invariant = False

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

    def project(self, x: Tensor, rotation: Rotation | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V, each [batch, heads, time, head_dim]; Q and K are rotated if a rotation is given."""
        heads = self.qkv(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = heads.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        return (query, key, value) if rotation is None else (rotation(query), rotation(key), value)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask,
        rotation: Rotation | None = None,
        bias: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        query, key, value = self.project(x, rotation)
        if cache is not None:
            key, value = cache.append(key, value)
        dropout = self.dropout if self.training else 0.0
        pages = None if cache is None else cache.pages
        # Only a step that is captured has lengths on the device.
        lengths = None if cache is None else cache.device_lengths
        heard = self.attend(
            query,
            key,
            value,
            mask=mask,
            bias=bias,
            scale=self.scale,
            dropout=dropout,
            pages=pages,
            batch_invariant=self.batch_invariant,
            lengths=lengths,
        )
        return self.out(heard.transpose(1, 2).flatten(2))  # [batch, time, heads x head_dim]

    def new_cache(
        self, batch: int, max_len: int, *, block_size: int | None = None, num_blocks: int | None = None
    ) -> KeyValueCache:
        """An empty cache for this layer; with a block size, a `PagedCache`."""
        return new_cache(
            batch=batch,
            heads=self.kv_heads,
            max_len=max_len,
            key_dim=self.head_dim,
            value_dim=self.head_dim,
            like=self.qkv.weight,
            block_size=block_size,
            num_blocks=num_blocks,
        )


class CrossAttention(nn.Module):
    """Attention from a decoder to an encoder, whose keys and values are computed once (`keys_values`) for all steps."""

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

    def keys_values(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of the encoder's output, each [batch, heads, time, head_dim]."""
        key, value = self.key_value(encoded).unflatten(-1, (2, self.heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        return key, value

    def forward(self, x: Tensor, memory: tuple[Tensor, Tensor], *, mask: Mask | None = None) -> Tensor:
        query = self.query(x).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
        dropout = self.dropout if self.training else 0.0
        heard = self.attend(
            query, *memory, mask=full() if mask is None else mask, q_start=0, scale=self.scale, dropout=dropout
        )
        return self.out(heard.transpose(1, 2).flatten(2))
