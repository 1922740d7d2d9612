"""The keys and values of the past, in memory that is taken once.

>>> import torch
>>> cache = KeyValueCache(batch=1, heads=2, max_len=8, key_dim=4)
>>> keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
>>> keys.shape, len(cache)
(torch.Size([1, 2, 3, 4]), 3)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.behind import behind
from rearview.masks.frame import whole_number


class KeyValueCache:
    """`append` writes new keys and values behind the old ones and returns views of all so far.

    Items of a batch may hold unequally many (`keep`): what is new then goes behind each item's own, and the queries
    that belong to it stand there; `placed` says so to their mask.

    For inference: what goes into the cache is detached, so no gradient reaches the keys and values in it.
    """

    def __init__(
        self,
        *,
        batch: int,
        heads: int,
        max_len: int,
        key_dim: int,
        value_dim: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        self.max_len = whole_number(max_len, "max_len", at_least=1)
        value_dim = key_dim if value_dim is None else value_dim
        self.keys = torch.empty(batch, heads, self.max_len, key_dim, dtype=dtype, device=device)
        self.values = torch.empty(batch, heads, self.max_len, value_dim, dtype=dtype, device=device)
        self._length = 0
        # How many each item holds, where they hold unequally many.
        self._lengths: Tensor | None = None

    def __len__(self) -> int:
        """Positions held; of the item that holds most."""
        return self._length

    @property
    def starts(self) -> Tensor | None:
        """Where each item's next position is, int64 [batch]; None when it is `len(cache)` for all."""
        return self._lengths

    @property
    def lengths(self) -> list[int]:
        """How many positions each item holds."""
        return [self._length] * len(self.keys) if self._lengths is None else self._lengths.tolist()

    def placed(self, mask: Mask) -> Mask:
        """The mask for queries that continue what the cache holds: each item's stand behind its own keys."""
        return mask if self._lengths is None else behind(mask, self._length - self._lengths)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, the new ones last (behind its own for each item, where they differ)."""
        count = key.shape[2]
        end = self._length + count
        if end > self.max_len:
            raise BadArgument(
                "cache",
                expected=f"at most {self.max_len} positions",
                came=f"{self._length} held and {count} new",
                advice="Make the cache with a larger max_len, or reset() it.",
            )
        if key.shape[:2] != self.keys.shape[:2] or key.dtype != self.keys.dtype or key.device != self.keys.device:
            raise BadArgument(
                "cache",
                expected=f"keys of batch x heads {list(self.keys.shape[:2])}, {self.keys.dtype} on {self.keys.device}",
                came=f"{list(key.shape[:2])}, {key.dtype} on {key.device}",
                advice="Make the cache with layer.new_cache(batch, max_len) after moving the layer.",
            )
        if self._lengths is None:
            self.keys[:, :, self._length : end] = key.detach()
            self.values[:, :, self._length : end] = value.detach()
        else:
            item = torch.arange(len(self.keys), device=key.device).unsqueeze(1)
            slot = self._lengths.unsqueeze(1) + torch.arange(count, device=key.device)
            # Indexed at the first and third axis: [batch, new, heads, dim] on both sides.
            self.keys[item, :, slot] = key.detach().transpose(1, 2)
            self.values[item, :, slot] = value.detach().transpose(1, 2)
            self._lengths = self._lengths + count
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def keep(self, lengths: Sequence[int]) -> None:
        """Forget all but the first `lengths[b]` positions of item b: the padding behind a short prompt, or a step back.

        >>> cache = KeyValueCache(batch=2, heads=1, max_len=8, key_dim=4)
        >>> keys, values = cache.append(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
        >>> cache.keep([3, 1])
        >>> len(cache), cache.starts
        (3, tensor([3, 1]))
        """
        held = self.lengths
        lengths = [whole_number(length, "lengths", at_least=0) for length in lengths]
        if len(lengths) != len(held) or any(length > own for length, own in zip(lengths, held, strict=True)):
            raise BadArgument("lengths", expected=f"for each item at most what it holds, {held}", came=lengths)
        self._hold(lengths)

    def take(self, items: Sequence[int]) -> None:
        """Go on with these items of the batch only, in this order: others have come to their end.

        >>> cache = KeyValueCache(batch=3, heads=1, max_len=8, key_dim=4)
        >>> keys, values = cache.append(torch.ones(3, 1, 2, 4), torch.ones(3, 1, 2, 4))
        >>> cache.keep([2, 1, 0])
        >>> cache.take([0, 2])
        >>> cache.lengths
        [2, 0]
        """
        held = self._checked_items(items)
        chosen = torch.tensor(list(items), device=self.keys.device)
        self.keys, self.values = self.keys[chosen], self.values[chosen]
        self._hold([held[item] for item in items])

    def put(self, items: Sequence[int], other: "KeyValueCache") -> None:
        """Let these items hold what the items of `other` hold, in their order, instead of what they held.

        >>> cache = KeyValueCache(batch=2, heads=1, max_len=8, key_dim=4)
        >>> other = KeyValueCache(batch=1, heads=1, max_len=3, key_dim=4)
        >>> keys, values = other.append(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4))
        >>> cache.put([1], other)
        >>> cache.lengths
        [0, 3]
        """
        held = self._checked_items(items)
        if len(other.keys) != len(items) or len(other) > self.max_len:
            expected = f"a cache of {len(items)} items that holds at most {self.max_len} positions"
            raise BadArgument("other", expected=expected, came=f"{len(other.keys)} items, {len(other)} positions")
        chosen = torch.tensor(list(items), device=self.keys.device)
        self.keys[chosen, :, : len(other)] = other.keys[:, :, : len(other)]
        self.values[chosen, :, : len(other)] = other.values[:, :, : len(other)]
        for item, length in zip(items, other.lengths, strict=True):
            held[item] = length
        self._hold(held)

    def reset(self) -> None:
        """Forget everything; the memory stays."""
        self._length, self._lengths = 0, None

    def _hold(self, lengths: list[int]) -> None:
        self._length = max(lengths, default=0)
        even = len(set(lengths)) <= 1
        self._lengths = None if even else torch.tensor(lengths, device=self.keys.device)

    def _checked_items(self, items: Sequence[int]) -> list[int]:
        held = self.lengths
        if len(set(items)) < len(items) or not all(0 <= item < len(held) for item in items):
            raise BadArgument(
                "items", expected=f"items of the batch, 0 to {len(held) - 1}, each once", came=list(items)
            )
        return held
