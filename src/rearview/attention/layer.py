"""MaskedSelfAttention, a layer: X -> Q, K, V -> heads -> attend -> output.

>>> import torch
>>> from rearview import MaskedSelfAttention, causal
>>> layer = MaskedSelfAttention(16, 4, mask=causal())
>>> layer(torch.randn(2, 5, 16)).shape
torch.Size([2, 5, 16])
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rearview.attention.arguments import finite_number
from rearview.attention.bias import Alibi
from rearview.attention.cache import KeyValueCache
from rearview.attention.functional import attend
from rearview.attention.paged_cache import new_cache
from rearview.attention.positions import Rotation, next_positions, rotation_at
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Mask, causal
from rearview.masks.data import as_data, check_plain, described, is_whole, true_or_false
from rearview.masks.frame import whole_number


class MaskedSelfAttention(nn.Module):
    """Self-attention under a mask.

    Args:
        dim: number of input features.
        num_heads: number of query heads.
        mask: who may be heard.
        num_kv_heads: number of key and value heads, by default `num_heads`; fewer give grouped queries.
        head_dim, value_dim: number of features of the keys and of the values of a head, by default dim / num_heads.
        bias: whether W_Q, W_K, W_V and W_O have a bias.
        output: whether the heads are projected with W_O. If not, they are returned concatenated.
        dropout: probability for attention weights, in training mode only.
        score_bias: `alibi(...)`, which is added to the scores.
        rotary: the base of rotary positions, such as 10000.0, by which queries and keys are rotated. None for none.
        engine, batch_invariant: as in `attend`.
        w_q, w_k, w_v, w_o: initial weights [in, out], as in the formula Q = X W_Q.

    A worked example with given weights:

    >>> w_q, w_k, w_v = (torch.eye(2) for _ in range(3))
    >>> layer = MaskedSelfAttention(2, 1, w_q=w_q, w_k=w_k, w_v=w_v, bias=False, output=False)
    >>> layer(torch.eye(2))[0].tolist()
    [1.0, 0.0]
    """

    # `observe` replaces this attribute on the layers that it watches.
    attend = staticmethod(attend)

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        mask: Mask = causal(),
        num_kv_heads: int | None = None,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        output: bool = True,
        dropout: float = 0.0,
        score_bias: Alibi | None = None,
        rotary: float | None = None,
        engine: str = "auto",
        batch_invariant: bool = False,
        w_q: Tensor | None = None,
        w_k: Tensor | None = None,
        w_v: Tensor | None = None,
        w_o: Tensor | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        dim = whole_number(dim, "dim", at_least=1)
        self.num_heads = whole_number(num_heads, "num_heads", at_least=1)
        self.num_kv_heads = (
            self.num_heads if num_kv_heads is None else whole_number(num_kv_heads, "num_kv_heads", at_least=1)
        )
        if self.num_heads % self.num_kv_heads:
            expected = f"a number that divides num_heads = {self.num_heads}"
            raise BadArgument("num_kv_heads", expected=expected, got=self.num_kv_heads)
        if not isinstance(mask, Mask):
            raise BadArgument("mask", expected="a Mask such as causal()", got=type(mask).__name__)
        for name, weight in (("w_q", w_q), ("w_k", w_k), ("w_v", w_v), ("w_o", w_o)):
            if weight is not None and not (
                isinstance(weight, Tensor) and weight.ndim == 2 and weight.is_floating_point()
            ):
                raise BadArgument(name, expected="a float tensor [in, out]", got=described(weight))
        true_or_false(bias, "bias")
        self.head_dim = self._head_dim(w_q, self.num_heads, head_dim, dim, "head_dim")
        self.value_dim = self._head_dim(
            w_v, self.num_kv_heads, value_dim, self.head_dim * self.num_kv_heads, "value_dim"
        )
        self.mask, self.score_bias, self.engine, self.batch_invariant = mask, score_bias, engine, batch_invariant
        self.dropout = finite_number(dropout, "dropout", at_least=0.0, below=1.0)
        self.rotary = None if rotary is None else finite_number(rotary, "rotary", above=0.0)
        if rotary is not None and self.head_dim % 2:
            raise BadArgument(
                "rotary", expected="an even head_dim, whose features are rotated in pairs", got=self.head_dim
            )

        def linear(given: Tensor | None, rows: int, columns: int, name: str) -> nn.Linear:
            layer = nn.Linear(rows, columns, bias=bias, dtype=dtype, device=device)
            if given is not None:
                if given.shape != (rows, columns):
                    raise BadArgument(name, expected=f"shape [{rows}, {columns}] (in, out)", got=list(given.shape))
                layer.weight = nn.Parameter(given.detach().T.to(layer.weight).contiguous())
                # The formula has no bias, so the bias of given weights starts at zero.
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)
            return layer

        self.w_q = linear(w_q, dim, self.num_heads * self.head_dim, "w_q")
        self.w_k = linear(w_k, dim, self.num_kv_heads * self.head_dim, "w_k")
        self.w_v = linear(w_v, dim, self.num_kv_heads * self.value_dim, "w_v")
        self.w_o = linear(w_o, self.num_heads * self.value_dim, dim, "w_o") if true_or_false(output, "output") else None
        if not output and w_o is not None:
            raise BadArgument("w_o", expected="nothing when output=False", got=f"a tensor {list(w_o.shape)}")

    @staticmethod
    def _head_dim(given: Tensor | None, heads: int, asked: int | None, total: int, name: str) -> int:
        if asked is not None:
            return whole_number(asked, name, at_least=1)
        total = given.shape[-1] if given is not None else total
        if total % heads:
            raise BadArgument(name, expected=f"features that divide into {heads} heads", got=total)
        return total // heads

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Q, K and V of `x` [batch, time, dim], each [batch, heads, time, head dim]; rotary positions come after."""
        query = self.w_q(x).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
        key = self.w_k(x).unflatten(-1, (self.num_kv_heads, self.head_dim)).transpose(1, 2)
        value = self.w_v(x).unflatten(-1, (self.num_kv_heads, self.value_dim)).transpose(1, 2)
        return query, key, value

    def forward(
        self,
        x: Tensor,
        *,
        mask: Mask | None = None,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Map [batch, time, dim] to the same shape; [time, dim] is a batch of one.

        `mask` narrows the mask of the layer for this call, for padding or packed documents: `layer.mask & mask`. With a
        `cache`, `x` continues the sequence in the cache. `positions` [time] or [batch, time] are those by which a layer
        with `rotary` rotates; by default 0, 1, 2, ..., after those in the cache. In documents and trees they are
        `mask.positions`.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise BadArgument("x", expected="a float tensor [batch, time, dim]", got=described(x))
        check_plain(x, "x", expected="a float tensor [batch, time, dim]")
        if x.ndim not in (2, 3) or x.shape[-1] != self.w_q.in_features:
            expected = f"[batch, time, {self.w_q.in_features}] or [time, {self.w_q.in_features}]"
            raise BadArgument("x", expected=expected, got=list(x.shape))
        if mask is not None and not isinstance(mask, Mask):
            raise BadArgument("mask", expected="a Mask such as padding(...)", got=type(mask).__name__)
        if cache is not None and not isinstance(cache, KeyValueCache):
            expected = "a KeyValueCache, as layer.new_cache(batch, max_len) makes it"
            raise BadArgument("cache", expected=expected, got=described(cache))
        items = x if x.ndim == 3 else x.unsqueeze(0)
        query, key, value = self.heads(items)
        if self.rotary is not None or positions is not None:
            rotate = self._rotation(items, cache, positions)
            query, key = rotate(query), rotate(key)
        mask = self.mask if mask is None else self.mask & mask
        if cache is not None:
            mask = cache.placed(mask)
            key, value = cache.append(key, value)
        lengths = None if cache is None else cache.device_lengths
        heard = self.attend(
            query,
            key,
            value,
            mask=mask,
            bias=self.score_bias,
            dropout=self.dropout if self.training else 0.0,
            pages=None if cache is None else cache.pages,
            batch_invariant=self.batch_invariant,
            engine=self.engine,
            lengths=lengths,
        )
        out = heard.transpose(1, 2).flatten(2)  # [batch, time, heads x value dim]
        out = out if self.w_o is None else self.w_o(out)
        return out if x.ndim == 3 else out.squeeze(0)

    def _rotation(self, x: Tensor, cache: KeyValueCache | None, positions: Tensor | None) -> Rotation:
        """The rotation of the queries and keys of `x` [batch, time, dim]."""
        if self.rotary is None:
            expected = "nothing, in a layer without rotary positions"
            advice = "Make the layer with rotary=10000.0, or add the positions to x."
            raise BadArgument("positions", expected=expected, got=described(positions), advice=advice)
        if positions is None:
            positions = next_positions(x, cache)
        else:
            batch, time = x.shape[:2]
            expected = f"integers [{time}] or [{batch}, {time}]"
            positions = as_data(positions, "positions", expected=expected).to(x.device)
            if not is_whole(positions) or positions.shape not in ((time,), (1, time), (batch, time)):
                raise BadArgument("positions", expected=expected, got=described(positions))
        return rotation_at(positions, head_dim=self.head_dim, base=self.rotary, batch_invariant=self.batch_invariant)

    def new_cache(
        self, batch: int, max_len: int, *, block_size: int | None = None, num_blocks: int | None = None
    ) -> KeyValueCache:
        """An empty cache for this layer, on its device and in its dtype; with a block size, a `PagedCache`."""
        return new_cache(
            batch=batch,
            heads=self.num_kv_heads,
            max_len=max_len,
            key_dim=self.head_dim,
            value_dim=self.value_dim,
            like=self.w_k.weight,
            block_size=block_size,
            num_blocks=num_blocks,
        )

    @classmethod
    def from_multihead(
        cls, other: nn.MultiheadAttention, *, mask: Mask = causal(), engine: str = "auto"
    ) -> MaskedSelfAttention:
        """A layer with the weights of an `nn.MultiheadAttention` that is used for self-attention.

        In its boolean masks True means blocked; convert them with `from_bool(attn_mask, true_means="blocked")`. The
        layer is batch first regardless of `other.batch_first`.

        >>> other = nn.MultiheadAttention(8, 2, batch_first=True)
        >>> layer = MaskedSelfAttention.from_multihead(other, mask=causal())
        >>> x = torch.randn(1, 4, 8)
        >>> blocked = torch.ones(4, 4, dtype=torch.bool).triu(1)
        >>> torch.allclose(layer(x), other(x, x, x, attn_mask=blocked)[0], atol=1e-6)
        True
        """
        if not isinstance(other, nn.MultiheadAttention):
            raise BadArgument("other", expected="an nn.MultiheadAttention", got=type(other).__name__)
        reasons = []
        if not other._qkv_same_embed_dim:
            reasons.append("its keys or values have another width (kdim, vdim), so it is not self-attention")
        if other.bias_k is not None:
            reasons.append("it appends a learned key and value (add_bias_kv)")
        if other.add_zero_attn:
            reasons.append("it appends a key of zeros (add_zero_attn)")
        if reasons:
            raise Unsupported("nn.MultiheadAttention cannot be converted", reasons)
        has_bias = other.in_proj_bias is not None
        weight = other.out_proj.weight
        layer = cls(
            other.embed_dim,
            other.num_heads,
            mask=mask,
            bias=has_bias,
            dropout=other.dropout,
            engine=engine,
            dtype=weight.dtype,
            device=weight.device,
        )
        with torch.no_grad():
            assert layer.w_o is not None
            projections = (layer.w_q, layer.w_k, layer.w_v)
            for mine, theirs in zip(projections, other.in_proj_weight.chunk(3), strict=True):
                mine.weight.copy_(theirs)
            layer.w_o.weight.copy_(weight)
            if has_bias:
                for mine, theirs in zip(projections, other.in_proj_bias.chunk(3), strict=True):
                    mine.bias.copy_(theirs)
                layer.w_o.bias.copy_(other.out_proj.bias)
        return layer.train(other.training)

    def extra_repr(self) -> str:
        grouped = f", num_kv_heads={self.num_kv_heads}" if self.num_kv_heads != self.num_heads else ""
        rotary = f", rotary={self.rotary:g}" if self.rotary is not None else ""
        return f"num_heads={self.num_heads}{grouped}, mask={self.mask!r}{rotary}"
