"""One call of one layer, in the positions of the whole sequence: what statistics and exact weights are made of.

>>> import torch
>>> from rearview import causal
>>> x = torch.randn(1, 4, 6, 8)
>>> glance = Glance.of(x[:, :, 4:], x, mask=causal(), heads=(1, 3))
>>> glance.query.shape, glance.q_start
(torch.Size([1, 2, 2, 8]), 4)
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rearview.attention import Alibi
from rearview.attention.statistics import Statistics, statistics
from rearview.masks import Mask
from rearview.masks.item import item_of
from rearview.observe.placed import placed

# What a call says beside its queries and keys, as `statistics` takes it.
OPTIONS = ("mask", "q_start", "bias", "scale", "softcap", "sinks")


@dataclass(frozen=True, eq=False)
class Glance:
    """`query` [batch, heads, q_len, dim] over `key` [batch, key heads, k_len, dim]; keys stand at 0..k_len-1."""

    query: Tensor
    key: Tensor
    mask: Mask
    q_start: int
    bias: Tensor | Alibi | None = None
    scale: float | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @classmethod
    def of(
        cls,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask,
        q_start: int | None = None,
        at: int | None = None,
        dropped: int = 0,
        heads: tuple[int, ...] | None = None,
        bias: Tensor | Alibi | None = None,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Glance:
        """A call as its layer made it.

        Args:
            q_start: where the layer has its first query among its own keys, as in `attend`.
            at: where that query stands in the sequence; with the keys, unless given.
            dropped: so many keys of the sequence stood before the first, and are no longer there.
            heads: the heads to look at, all unless given.
        """
        own = key.shape[2] - query.shape[2] if q_start is None else q_start
        at = own + dropped if at is None else at
        if dropped:
            # They keep their places, and nobody hears them.
            key = F.pad(key, (0, 0, dropped, 0))
            if isinstance(bias, Tensor) and bias.shape[-1] > 1:
                bias = F.pad(bias, (dropped, 0))
        if heads is not None:
            group = query.shape[1] // key.shape[1]
            key = key[:, [head // group for head in heads]]
            query = query[:, list(heads)]
            sinks = None if sinks is None else sinks[list(heads)]
            bias = _heads_of(bias, list(heads))
        moved = placed(mask, queries=at - own, keys=dropped, heads=heads)
        return cls(query.detach(), key.detach(), moved, at, bias, scale, softcap, sinks)

    @property
    def options(self) -> dict[str, Any]:
        """What `statistics` and `tile` are asked with."""
        return {name: getattr(self, name) for name in OPTIONS}

    @property
    def q_end(self) -> int:
        """One past the position of the last query."""
        return self.q_start + self.query.shape[2]

    def until(self, position: int, *, own_keys: bool) -> Glance:
        """As if the call had ended before this position; `own_keys`: the keys are those of the same sequence.

        >>> from rearview import causal
        >>> x = torch.randn(1, 2, 6, 8)
        >>> cut = Glance.of(x[:, :, 3:], x, mask=causal()).until(5, own_keys=True)
        >>> cut.q_start, cut.query.shape[2], cut.key.shape[2]
        (3, 2, 5)
        """
        rows, keys = position - self.q_start, position if own_keys else self.key.shape[2]
        bias = self.bias
        if isinstance(bias, Tensor):
            bias = bias[..., :rows, :keys] if bias.shape[-2] > 1 else bias[..., :keys]
        return replace(self, query=self.query[:, :, :rows], key=self.key[:, :, :keys], bias=bias)

    def to(self, device: torch.device) -> Glance:
        """The same on another device."""
        moved = {name: getattr(self, name) for name in ("query", "key", "bias", "sinks")}
        tensors = {name: value.to(device) for name, value in moved.items() if isinstance(value, Tensor)}
        return replace(self, mask=self.mask.to(device), **tensors)

    def statistics(self, earlier: Statistics | None, *, map_size: int | None, links: int) -> Statistics:
        """The statistics of this call, joined to those of the calls before it."""
        width = None
        if earlier is not None and map_size is not None:
            # A bin of the longer sequence is one, two, four ... of the shorter.
            width = earlier.bin_width
            while width * map_size < max(self.q_end, self.key.shape[2]):
                width *= 2
        own = statistics(self.query, self.key, **self.options, map_size=map_size, links=links, bin_width=width)
        return own if earlier is None else earlier.joined(own)

    def single(self, item: int, row: int) -> Glance:
        """One batch item and head of it."""
        group = self.query.shape[1] // self.key.shape[1]
        bias = _heads_of(self.bias, [row])
        if isinstance(bias, Tensor) and bias.ndim == 4 and bias.shape[0] > 1:
            bias = bias[item : item + 1]
        same_items, same_heads = self.mask.batch is None, self.mask.heads is None
        mask = item_of(self.mask, batch=0 if same_items else item, head=0 if same_heads else row)
        return replace(
            self,
            query=self.query[item : item + 1, row : row + 1],
            key=self.key[item : item + 1, row // group : row // group + 1],
            mask=mask,
            bias=bias,
            sinks=None if self.sinks is None else self.sinks[row : row + 1],
        )


def _heads_of(bias: Tensor | Alibi | None, heads: list[int]) -> Tensor | Alibi | None:
    if isinstance(bias, Alibi):
        return Alibi(bias.slopes[heads])
    if bias is None or bias.ndim < 3 or bias.shape[-3] == 1:
        return bias
    return bias[..., heads, :, :]
