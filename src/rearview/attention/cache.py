"""A cache of keys and values in memory that is allocated once.

>>> import torch
>>> cache = KeyValueCache(batch=1, heads=2, max_len=8, key_dim=4)
>>> keys, values = cache.append(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
>>> keys.shape, len(cache)
(torch.Size([1, 2, 3, 4]), 3)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from rearview.attention.pages import Pages
from rearview.attention.sequence_shard import refuse_shard
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.data import as_device, as_list, described
from rearview.masks.frame import whole_number
from rearview.masks.lagged import lagged


class KeyValueCache:
    """The keys and values of the positions so far: `append` writes new ones after them and returns views of all.

    The items of a batch may hold different numbers of positions (`keep`). New keys and values are then written after
    those of each item, and the queries have these positions; `placed` returns the mask for such queries.

    The cache is for inference: keys and values are detached when they are written, so they receive no gradients.
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
        self.batch = batch = whole_number(batch, "batch", at_least=0)
        heads, key_dim = whole_number(heads, "heads", at_least=1), whole_number(key_dim, "key_dim", at_least=1)
        value_dim = key_dim if value_dim is None else whole_number(value_dim, "value_dim", at_least=1)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise BadArgument("dtype", expected="a floating point dtype, such as torch.float32", got=repr(dtype))
        # Without a device, PyTorch's default one.
        on = None if device is None else as_device(device)
        self.keys, self.values = (
            torch.empty(*self._shape(batch, heads, dim), dtype=dtype, device=on) for dim in (key_dim, value_dim)
        )
        self._length = 0
        # The number of positions that each item holds, where they differ.
        self._lengths: Tensor | None = None

    def _shape(self, batch: int, heads: int, dim: int) -> tuple[int, int, int, int]:
        return batch, heads, self.max_len, dim

    def __len__(self) -> int:
        """The number of positions that the fullest item holds."""
        return self._length

    @property
    def starts(self) -> Tensor | None:
        """The next position of each item, int64 [batch]; None if it is `len(cache)` for all."""
        return self._lengths

    @property
    def lengths(self) -> list[int]:
        """The number of positions that each item holds."""
        return [self._length] * self.batch if self._lengths is None else self._lengths.tolist()

    @property
    def pages(self) -> Pages | None:
        """`attend(..., pages=)` for what `append` returned; None for a cache that is not in pages."""
        return None

    @property
    def device_lengths(self) -> Tensor | None:
        """`attend(..., lengths=)` for what `append` returned; None for a cache that is counted on the host."""
        return None

    def placed(self, mask: Mask) -> Mask:
        """The mask for queries that continue the cache: those of an item come after the keys of that item."""
        return mask if self._lengths is None else lagged(mask, self._length - self._lengths)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values, including the new ones, which follow the last position of each item."""
        end = self._checked_end(key, value)
        count = key.shape[2]
        if self._lengths is None:
            self.keys[:, :, self._length : end] = key.detach()
            self.values[:, :, self._length : end] = value.detach()
        else:
            item = torch.arange(self.batch, device=key.device).unsqueeze(1)
            slot = self._lengths.unsqueeze(1) + torch.arange(count, device=key.device)
            # Indexing the first and third axes gives [batch, new, heads, dim].
            self.keys[item, :, slot] = key.detach().transpose(1, 2)
            self.values[item, :, slot] = value.detach().transpose(1, 2)
            self._lengths = self._lengths + count
        self._length = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _checked_end(self, key: Tensor, value: Tensor) -> int:
        """How many positions the cache holds after these keys and values."""
        refuse_shard("a cache", advice="Generate outside of layout.on(...), with the whole sequence on one device.")
        for name, given in (("key", key), ("value", value)):
            if not isinstance(given, Tensor) or given.ndim != 4:
                expected = "a tensor [batch, heads, time, dim]"
                raise BadArgument(name, expected=expected, got=described(given))
        count, shape = key.shape[2], (self.batch, self.keys.shape[1])
        if self._length + count > self.max_len:
            raise BadArgument(
                "cache",
                expected=f"at most {self.max_len} positions",
                got=f"{self._length} held and {count} new",
                advice="Create the cache with a larger max_len, or reset() it.",
            )
        if key.shape[:2] != shape or key.dtype != self.keys.dtype or key.device != self.keys.device:
            raise BadArgument(
                "cache",
                expected=f"keys of batch x heads {list(shape)}, {self.keys.dtype} on {self.keys.device}",
                got=f"{list(key.shape[:2])}, {key.dtype} on {key.device}",
                advice="Create the cache with layer.new_cache(batch, max_len) after moving the layer.",
            )
        # Assigning would broadcast or cast what does not fit.
        for name, given, held in (("key", key, self.keys), ("value", value, self.values)):
            fitting = (*shape, count, held.shape[3])
            if given.shape != fitting or given.dtype != held.dtype or given.device != held.device:
                expected = f"{held.dtype} of shape {list(fitting)} on {held.device}"
                raise BadArgument(
                    name, expected=expected, got=f"{given.dtype} of shape {list(given.shape)} on {given.device}"
                )
        return self._length + count

    def keep(self, lengths: Sequence[int], paths: Sequence[Sequence[int]] | None = None) -> None:
        """Keep the first `lengths[b]` positions of item b and drop the rest, such as the padding after a short prompt.

        With `paths`, the positions after those are nodes of a tree, of which item b keeps `paths[b]`: rising numbers,
        counted from its first node. They move to the positions `lengths[b]`, `lengths[b] + 1`, and so on.

        >>> cache = KeyValueCache(batch=2, heads=1, max_len=8, key_dim=4)
        >>> keys, values = cache.append(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
        >>> cache.keep([3, 1])
        >>> len(cache), cache.starts
        (3, tensor([3, 1]))
        >>> keys, values = cache.append(torch.rand(2, 1, 4, 4), torch.rand(2, 1, 4, 4))
        >>> node = keys[0, 0, 3 + 2].clone()
        >>> cache.keep([3, 1], paths=[[0, 2], []])
        >>> cache.lengths, torch.equal(cache.keys[0, 0, 3 + 1], node)
        ([5, 1], True)
        """
        held = self.lengths
        lengths = [whole_number(length, "lengths", at_least=0) for length in _listed(lengths, "lengths")]
        if len(lengths) != len(held) or any(length > own for length, own in zip(lengths, held, strict=True)):
            raise BadArgument(
                "lengths", expected=f"at most the number of positions that each item holds, {held}", got=lengths
            )
        if paths is not None:
            nodes = [own - length for own, length in zip(held, lengths, strict=True)]
            kept = _checked_paths(paths, nodes)
            self._move(lengths, kept)
            lengths = [length + len(path) for length, path in zip(lengths, kept, strict=True)]
        self._hold(lengths)

    def take(self, items: Sequence[int]) -> None:
        """Keep only these items of the batch, in this order. An item that is named twice continues as two.

        >>> cache = KeyValueCache(batch=3, heads=1, max_len=8, key_dim=4)
        >>> keys, values = cache.append(torch.ones(3, 1, 2, 4), torch.ones(3, 1, 2, 4))
        >>> cache.keep([2, 1, 0])
        >>> cache.take([0, 2])
        >>> cache.lengths
        [2, 0]
        """
        items, held = self._checked_items(items), self.lengths
        chosen = torch.tensor(items, dtype=torch.long, device=self.keys.device)
        self.keys, self.values, self.batch = self.keys[chosen], self.values[chosen], len(items)
        self._hold([held[item] for item in items])

    def put(self, items: Sequence[int], other: KeyValueCache) -> None:
        """Replace the contents of these items by those of the items of `other`, in order.

        >>> cache = KeyValueCache(batch=2, heads=1, max_len=8, key_dim=4)
        >>> other = KeyValueCache(batch=1, heads=1, max_len=3, key_dim=4)
        >>> keys, values = other.append(torch.ones(1, 1, 3, 4), torch.ones(1, 1, 3, 4))
        >>> cache.put([1], other)
        >>> cache.lengths
        [0, 3]
        """
        items, held = self._checked_replacement(items, other)
        chosen = torch.tensor(items, dtype=torch.long, device=self.keys.device)
        keys, values = other.contents()
        self.keys[chosen, :, : len(other)], self.values[chosen, :, : len(other)] = keys, values
        self._hold(held)

    def contents(self) -> tuple[Tensor, Tensor]:
        """The keys and the values so far, [batch, heads, len(cache), dim]; after the end of an item, anything."""
        return self.keys[:, :, : self._length], self.values[:, :, : self._length]

    def reset(self) -> None:
        """Drop all positions; the memory is kept."""
        self._length, self._lengths = 0, None

    def _hold(self, lengths: list[int]) -> None:
        self._length = max(lengths, default=0)
        even = len(set(lengths)) <= 1
        self._lengths = None if even else torch.tensor(lengths, device=self.keys.device)

    def _move(self, lengths: list[int], paths: list[list[int]]) -> None:
        """Move the nodes of each path to the positions that follow `lengths`."""
        if moves := path_moves(lengths, paths):
            item, source, target = torch.tensor(moves, device=self.keys.device).T
            # The right side is a copy, so a node may move to where another one of the path was.
            self.keys[item, :, target] = self.keys[item, :, source]
            self.values[item, :, target] = self.values[item, :, source]

    def _checked_items(self, items: Sequence[int]) -> list[int]:
        chosen = _listed(items, "items")
        if not all(isinstance(item, int) and 0 <= item < self.batch for item in chosen):
            raise BadArgument("items", expected=f"items of the batch, 0 to {self.batch - 1}", got=chosen)
        return chosen

    def _checked_replacement(self, items: Sequence[int], other: KeyValueCache) -> tuple[list[int], list[int]]:
        """The items, and how many positions each item of the batch holds once `other` is in the place of these."""
        items, held = self._checked_items(items), self.lengths
        if len(set(items)) < len(items):
            raise BadArgument("items", expected="items of the batch, each once", got=items)
        if not isinstance(other, KeyValueCache):
            raise BadArgument("other", expected="a KeyValueCache", got=type(other).__name__)
        if other.batch != len(items) or len(other) > self.max_len:
            expected = f"a cache of {len(items)} items that holds at most {self.max_len} positions"
            raise BadArgument("other", expected=expected, got=f"{other.batch} items, {len(other)} positions")
        if other._kind != self._kind:
            raise BadArgument("other", expected=f"a cache of {self._kind}", got=other._kind)
        for item, length in zip(items, other.lengths, strict=True):
            held[item] = length
        return items, held

    @property
    def _kind(self) -> str:
        """What one position is, in words."""
        (_, heads, _, key_dim), value_dim = self.keys.shape, self.values.shape[3]
        return f"{heads} heads with keys of {key_dim} and values of {value_dim} numbers, {self.keys.dtype}"


def path_moves(lengths: list[int], paths: list[list[int]]) -> list[tuple[int, int, int]]:
    """(item, from position, to position) for each node that is not where it will be kept.

    >>> path_moves([4], [[0, 2]])
    [(0, 6, 5)]
    """
    return [
        (item, length + node, length + place)
        for item, (length, path) in enumerate(zip(lengths, paths, strict=True))
        for place, node in enumerate(path)
        if node != place
    ]


def _listed(values: Any, argument: str) -> list:
    """A sequence or a tensor as a list."""
    values = as_list(values, argument, expected="a list")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise BadArgument(argument, expected="a list", got=repr(values))
    return list(values)


def _checked_paths(paths: Sequence[Sequence[int]], nodes: list[int]) -> list[list[int]]:
    given = [_listed(path, "paths") for path in _listed(paths, "paths")]
    checked = [[whole_number(node, "paths", at_least=0) for node in path] for path in given]
    are_paths = len(checked) == len(nodes) and all(
        path == sorted(set(path)) and (not path or path[-1] < own) for path, own in zip(checked, nodes, strict=True)
    )
    if not are_paths:
        expected = f"rising numbers of nodes for each item, of which there are {nodes}"
        raise BadArgument("paths", expected=expected, got=checked)
    return checked
