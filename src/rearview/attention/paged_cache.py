"""A cache in pages: items take blocks of memory as they grow, and share those of a common beginning.

>>> import torch
>>> from rearview import attend
>>> cache = PagedCache(batch=1, heads=2, max_len=64, key_dim=8, block_size=4, num_blocks=20)
>>> prompt = torch.randn(1, 2, 6, 8)
>>> keys, values = cache.append(prompt, prompt)
>>> cache.take([0, 0, 0])    # three continuations of one prompt; nothing is copied
>>> cache.blocks_in_use
2
>>> new = torch.randn(3, 2, 1, 8)
>>> keys, values = cache.append(new, new)    # each writes a last block of its own, and all share the first
>>> cache.blocks_in_use, attend(new, keys, values, pages=cache.pages).shape
(4, torch.Size([3, 2, 1, 8]))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from rearview.attention.cache import KeyValueCache, path_moves
from rearview.attention.pages import Pages
from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.frame import whole_number


class PagedCache(KeyValueCache):
    """A `KeyValueCache` whose keys and values are pools of blocks, for `attend(..., pages=cache.pages)`.

    `append` returns the pools. `take` shares the blocks of an item that is named several times, and a shared block is
    copied before an item writes into it. Blocks that no item uses any more serve the next one that needs some.

    Args:
        batch, heads, key_dim, value_dim, dtype, device: as for `KeyValueCache`.
        max_len: positions of an item, at most.
        block_size: positions of a block.
        num_blocks: blocks of the pools; by default as many as `batch` items of `max_len` positions need.
    """

    def __init__(
        self,
        *,
        batch: int,
        heads: int,
        max_len: int,
        key_dim: int,
        value_dim: int | None = None,
        block_size: int = 64,
        num_blocks: int | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ):
        self.block_size = whole_number(block_size, "block_size", at_least=1)
        needed = whole_number(batch, "batch", at_least=0) * -(
            -whole_number(max_len, "max_len", at_least=1) // self.block_size
        )
        self.num_blocks = needed if num_blocks is None else whole_number(num_blocks, "num_blocks", at_least=1)
        super().__init__(
            batch=batch,
            heads=heads,
            max_len=max_len,
            key_dim=key_dim,
            value_dim=value_dim,
            dtype=dtype,
            device=device,
        )
        # The blocks of each item, in order, and the same as a table; how many items use each block; unused blocks.
        self._blocks: list[list[int]] = [[] for _ in range(self.batch)]
        self._table = torch.zeros(self.batch, -(-self.max_len // self.block_size), dtype=torch.int32, device="cpu")
        self._users = [0] * self.num_blocks
        self._free = list(range(self.num_blocks))[::-1]
        self._pages: Pages | None = None

    def _shape(self, batch: int, heads: int, dim: int) -> tuple[int, int, int, int]:
        return self.num_blocks, heads, self.block_size, dim

    @property
    def pages(self) -> Pages:
        """The blocks and the length of each item."""
        if self._pages is None:
            self._pages = Pages(self._table[:, : max(map(len, self._blocks), default=0)], self.lengths)
        return self._pages

    @property
    def blocks_in_use(self) -> int:
        """How many blocks hold something; one that several items share counts once."""
        return self.num_blocks - len(self._free)

    def placed(self, mask: Mask) -> Mask:
        """The mask itself: the pages hold the positions of each item's queries."""
        return mask

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """The pools of keys and values, with the new ones after those that each item holds."""
        self._checked_end(key, value)
        held, count = self.lengths, key.shape[2]
        self._reserve(range(self.batch), [length + count for length in held])
        if count == 1:
            self._write_step(held, key.detach(), value.detach())
        else:
            self._write(range(self.batch), held, key.detach(), value.detach())
        self._hold([length + count for length in held])
        return self.keys, self.values

    def take(self, items: Sequence[int]) -> None:
        """Continue with these items of the batch only, in this order. An item that is named twice is shared.

        >>> cache = PagedCache(batch=2, heads=1, max_len=8, key_dim=4, block_size=2)
        >>> pools = cache.append(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
        >>> cache.take([1, 1])
        >>> cache.lengths, cache.blocks_in_use
        ([3, 3], 2)
        """
        items, held = self._checked_items(items), self.lengths
        before, self._blocks = self._blocks, [list(self._blocks[item]) for item in items]
        self._table = self._table[items]
        for blocks in self._blocks:
            self._share(blocks)
        for blocks in before:
            self._release(blocks)
        self.batch = len(items)
        self._hold([held[item] for item in items])

    def put(self, items: Sequence[int], other: KeyValueCache) -> None:
        """Let these items hold what the items of `other` hold, in their order, instead of what they held."""
        items, held = self._checked_replacement(items, other)
        used = [block for item in items for block in self._blocks[item]]
        freed = sum(used.count(block) == self._users[block] for block in set(used))
        self._check_room(sum(-(-length // self.block_size) for length in other.lengths), len(self._free) + freed)
        keys, values = other.contents()
        for item in items:
            self._release(self._blocks[item])
            self._blocks[item] = []
        self._reserve(items, other.lengths)
        self._write(items, [0] * len(items), keys, values)
        self._hold(held)

    def contents(self) -> tuple[Tensor, Tensor]:
        """Copies of the keys and values so far, [batch, heads, len(cache), dim]; after the end of an item, anything."""
        return self.pages.gather(self.keys), self.pages.gather(self.values)

    def reset(self) -> None:
        """Drop all positions; the memory is kept."""
        self._hold([0] * self.batch)

    def _move(self, lengths: list[int], paths: list[list[int]]) -> None:
        moves = path_moves(lengths, paths)
        if not moves:
            return
        size, device = self.block_size, self.keys.device
        written = sorted({(item, target // size) for item, _, target in moves})
        self._check_room(self._copies([self._blocks[item][index] for item, index in written]), len(self._free))
        for item, index in written:
            self._own_block(item, index)
        # Read before anything is written: a node may move to where another one of the path was.
        source = torch.tensor([(self._blocks[item][start // size], start % size) for item, start, _ in moves])
        target = torch.tensor([(self._blocks[item][end // size], end % size) for item, _, end in moves])
        (from_block, from_place), (to_block, to_place) = source.T.to(device), target.T.to(device)
        for pool in (self.keys, self.values):
            pool[to_block, :, to_place] = pool[from_block, :, from_place]
        self._pages = None

    def _copies(self, written: list[int]) -> int:
        """How many blocks must be copied before they are written, one entry of `written` per item that writes."""
        shared = [block for block in written if self._users[block] > 1]
        # Of the items that share a block, the last to write into it keeps it.
        return len(shared) - sum(shared.count(block) == self._users[block] for block in set(shared))

    def _own_block(self, item: int, index: int) -> None:
        """Give an item a copy of a block that it shares."""
        old = self._blocks[item][index]
        if self._users[old] == 1:
            return
        new = self._taken()
        self.keys[new], self.values[new] = self.keys[old], self.values[old]
        self._release([old])
        self._blocks[item][index] = new
        self._table[item, index] = new

    def _hold(self, lengths: list[int]) -> None:
        for item, length in enumerate(lengths):
            used = -(-length // self.block_size)
            self._release(self._blocks[item][used:])
            del self._blocks[item][used:]
        self._pages = None
        super()._hold(lengths)

    def _reserve(self, items: Sequence[int], lengths: Sequence[int]) -> None:
        """Blocks for so many positions of each item; the one that is written into next is its own."""
        held = self.lengths
        wanted = sum(
            -(-length // self.block_size) - len(self._blocks[item]) for item, length in zip(items, lengths, strict=True)
        )
        # The items that write into the rest of their last block.
        writers = [
            item
            for item, length in zip(items, lengths, strict=True)
            if length > held[item] and held[item] % self.block_size and self._blocks[item]
        ]
        self._check_room(wanted + self._copies([self._blocks[item][-1] for item in writers]), len(self._free))
        for item in writers:
            self._own_block(item, len(self._blocks[item]) - 1)
        for item, length in zip(items, lengths, strict=True):
            blocks = self._blocks[item]
            while len(blocks) * self.block_size < length:
                self._set_block(item, len(blocks), self._taken())

    def _check_room(self, wanted: int, free: int) -> None:
        if wanted > free:
            raise BadArgument(
                "cache",
                expected=f"at most {self.num_blocks} blocks of {self.block_size} positions",
                got=f"{self.num_blocks - free} in use and {wanted} new",
                advice="Make the cache with a larger num_blocks, or keep() fewer positions.",
            )

    def _set_block(self, item: int, index: int, block: int) -> None:
        self._blocks[item][index:] = [block]
        self._table[item, index] = block

    def _write(self, items: Sequence[int], starts: Sequence[int], key: Tensor, value: Tensor) -> None:
        """Write `key` and `value` from position `starts[i]` of each item on, as far as the item has blocks."""
        size, device = self.block_size, key.device
        position = torch.tensor(starts, dtype=torch.long).unsqueeze(1) + torch.arange(key.shape[2])
        block = self._table[list(items)].long().gather(1, position // size)
        there = position < torch.tensor([len(self._blocks[item]) * size for item in items]).unsqueeze(1)
        block, place = block[there].to(device), (position % size)[there].to(device)
        for pool, new in ((self.keys, key), (self.values, value)):
            # Indexed at the first and third axis: [positions, heads, dim] on both sides.
            pool[block, :, place] = new.transpose(1, 2)[there.to(device)]

    def _write_step(self, starts: Sequence[int], key: Tensor, value: Tensor) -> None:
        """Write one position of each item, without the many small tensors that several positions need."""
        size = self.block_size
        places = [(blocks[n // size], n % size) for blocks, n in zip(self._blocks, starts, strict=True)]
        block, place = torch.tensor(places, dtype=torch.long, device=key.device).view(-1, 2).T
        self.keys[block, :, place], self.values[block, :, place] = key[:, :, 0], value[:, :, 0]

    def _taken(self) -> int:
        block = self._free.pop()
        self._users[block] = 1
        return block

    def _share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._users[block] += 1

    def _release(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._users[block] -= 1
            if not self._users[block]:
                self._free.append(block)


def new_cache(
    *,
    batch: int,
    heads: int,
    max_len: int,
    key_dim: int,
    value_dim: int,
    like: Tensor,
    block_size: int | None,
    num_blocks: int | None,
) -> KeyValueCache:
    """An empty cache on the device and in the dtype of `like`; in pages if there is a block size."""
    kind = KeyValueCache
    if block_size is not None:
        kind = partial(PagedCache, block_size=block_size, num_blocks=num_blocks)
    elif num_blocks is not None:
        raise BadArgument("num_blocks", expected="block_size= as well", got=f"num_blocks={num_blocks!r} alone")
    return kind(
        batch=batch,
        heads=heads,
        max_len=max_len,
        key_dim=key_dim,
        value_dim=value_dim,
        dtype=like.dtype,
        device=like.device,
    )
