"""A cache of fixed shape, whose lengths are on the device: a step over it can be captured in a CUDA graph.

>>> import torch
>>> from rearview import KeyValueCache, attend
>>> cache = KeyValueCache(batch=2, heads=1, max_len=8, key_dim=4)
>>> keys, values = cache.append(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
>>> clock = StepClock.of(cache)
>>> static = StaticCache(cache, clock)
>>> keys, values = static.append(torch.ones(2, 1, 1, 4), torch.ones(2, 1, 1, 4))
>>> keys.shape, static.device_lengths.tolist()
(torch.Size([2, 1, 8, 4]), [4, 4])
>>> attend(torch.ones(2, 1, 1, 4), keys, values, lengths=static.device_lengths).shape
torch.Size([2, 1, 1, 4])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.attention.cache import KeyValueCache
from rearview.masks import Mask


@dataclass(frozen=True, eq=False)
class StepClock:
    """Where a step with one token per item stands. The layers of a model share it.

    Args:
        starts: int64 [batch], the position of the new token of each item.
        ends: int32 [batch], the positions that an item holds with the new token.
        steps: int64 [batch], 1 for an item that continues and 0 for one that has ended.
    """

    starts: Tensor
    ends: Tensor
    steps: Tensor

    @classmethod
    def of(cls, cache: KeyValueCache) -> StepClock:
        """The next step of the items of a cache."""
        starts = torch.tensor(cache.lengths, device=cache.keys.device)
        return cls(starts, (starts + 1).int(), torch.ones_like(starts))

    def set(self, lengths: list[int], continues: list[bool]) -> None:
        """Stand after these positions."""
        device = self.starts.device
        self.starts.copy_(torch.tensor(lengths, device=device))
        self.ends.copy_(self.starts + 1)
        self.steps.copy_(torch.tensor(continues, device=device))

    def advance(self) -> None:
        """One position further, for the items that continue."""
        self.starts.add_(self.steps)
        self.ends.add_(self.steps)


class StaticCache(KeyValueCache):
    """The memory of another cache, which is extended at the positions of a clock: one token per item.

    `append` returns all keys and values that there is room for; `attend(..., lengths=cache.device_lengths)` tells which
    of them exist. Nothing is counted on the host, so the cache whose memory this is does not know of new tokens.
    """

    def __init__(self, cache: KeyValueCache, clock: StepClock):
        self.keys, self.values = cache.keys, cache.values
        self.batch, self.max_len = cache.batch, cache.max_len
        self._length, self._lengths = len(cache), None
        self._clock, self._items = clock, torch.arange(cache.batch, device=cache.keys.device)

    @property
    def starts(self) -> Tensor | None:
        return self._clock.starts

    @property
    def device_lengths(self) -> Tensor | None:
        return self._clock.ends

    def placed(self, mask: Mask) -> Mask:
        return mask

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        assert key.shape[2] == 1, "a static cache takes one token per item and step"
        slots = self._clock.starts
        self.keys[self._items, :, slots] = key[:, :, 0].detach()
        self.values[self._items, :, slots] = value[:, :, 0].detach()
        return self.keys, self.values
