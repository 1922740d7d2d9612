"""Keys and values in pages: pools of blocks, and a table that says which blocks hold each batch item, in order.

    >>> import torch
    >>> from rearview import attend
    >>> from rearview.attention import Pages
    >>> keys, values = torch.randn(2, 10, 1, 4, 8).unbind()    # ten blocks of four positions, one key head
    >>> pages = Pages([[7, 2, 5], [7, 3, -1]], [9, 6])         # both items begin with block 7
    >>> attend(torch.randn(2, 2, 1, 8), keys, values, pages=pages).shape
    torch.Size([2, 2, 1, 8])

A pool is [blocks, key heads, block size, dim], with any strides: one that is stored as [blocks, block size, key heads,
dim] is passed as `pool.transpose(1, 2)`, which copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks import Mask, padding
from rearview.masks.data import as_data, as_list, check_readable, described, is_whole
from rearview.masks.frame import whole_number
from rearview.masks.lagged import lagged

TABLE = "an integer tensor [batch, blocks]"


class Pages:
    """Which blocks of a pool hold the keys and values of each batch item, and how many positions each item holds.

    Args:
        table: int [batch, blocks]; position n of an item is in block `table[item, n // block_size]` of the pool.
        lengths: the number of positions that each item holds. Entries of the table after its last block are not read.

    The queries of an item stand at its last positions. A table is copied, so it may be changed afterwards.

    >>> Pages([[0, 1], [0, 2]], [7, 5])
    Pages(2 items, lengths [7, 5])
    """

    def __init__(self, table: Tensor | Sequence[Sequence[int]], lengths: Sequence[int] | Tensor):
        numbers = as_data(table, "table", expected=TABLE)
        if numbers.ndim != 2 or not is_whole(numbers):
            raise BadArgument("table", expected=TABLE, got=described(numbers))
        check_readable(numbers, "table", expected=TABLE)
        expected = f"one for each of {len(numbers)} items"
        counts = as_list(as_data(lengths, "lengths", expected=expected), "lengths", expected=expected)
        if not isinstance(counts, list) or len(counts) != len(numbers):
            got = len(counts) if isinstance(counts, list) else counts
            raise BadArgument("lengths", expected=expected, got=got)
        self.lengths = tuple(whole_number(count, "lengths", at_least=0) for count in counts)
        self.table = numbers.int().contiguous()
        # The last mask that was placed: the layers of a model ask with the same one, and it remembers its ranges.
        self._placed: tuple[Mask, Mask] | None = None
        self._on: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __repr__(self) -> str:
        return f"Pages({len(self.lengths)} items, lengths {list(self.lengths)})"

    @cached_property
    def k_len(self) -> int:
        """The number of positions of the longest item."""
        return max(self.lengths, default=0)

    @cached_property
    def is_even(self) -> bool:
        """Whether all items hold the same number of positions."""
        return len(set(self.lengths)) <= 1

    @cached_property
    def lengths_tensor(self) -> Tensor:
        """The lengths as int32 [batch], on the CPU."""
        return torch.tensor(self.lengths, dtype=torch.int32, device="cpu")

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The table and the lengths as int32 on a device, copied once."""
        if device not in self._on:
            self._on[device] = (self.table.to(device), self.lengths_tensor.to(device))
        return self._on[device]

    def placed(self, mask: Mask) -> Mask:
        """The mask over `k_len` keys: the queries of each item are at its last positions, and hear its keys alone."""
        if self.is_even:
            return mask
        # Read once: another thread may ask with another mask in between.
        last = self._placed
        if last is None or last[0] is not mask:
            own = lagged(mask, [self.k_len - length for length in self.lengths]) & padding(list(self.lengths))
            self._placed = last = (mask, own)
        return last[1]

    def check(self, query: Tensor, pool: Tensor) -> None:
        """Raise unless the table fits the batch of the query and the blocks of the pool."""
        blocks, _, block_size, _ = pool.shape
        if len(self.lengths) != len(query):
            expected = f"a table for batch {len(query)}, as the query"
            raise BadArgument("pages", expected=expected, got=len(self.lengths))
        if block_size == 0 and self.k_len:
            raise BadArgument("key", expected="blocks of at least one position", got=list(pool.shape))
        most = -(-self.k_len // block_size) if self.k_len else 0
        if most > self.table.shape[1]:
            expected = f"at least {most} blocks in the table, for {self.k_len} positions in blocks of {block_size}"
            raise BadArgument("pages", expected=expected, got=self.table.shape[1])
        if not most:
            return
        low, high = self._extent
        if low >= 0 and high < blocks:
            return
        # Something is out of range, perhaps only where nothing is read.
        used = torch.arange(self.table.shape[1]) < (self.lengths_tensor.unsqueeze(1) + block_size - 1) // block_size
        table = self.table.cpu()
        wrong = used & ((table < 0) | (table >= blocks))
        if bool(wrong.any()):
            item, column = wrong.nonzero()[0].tolist()
            got = f"{int(table[item, column])} for item {item}"
            raise BadArgument("pages", expected=f"blocks 0 to {blocks - 1} of the pool", got=got)

    @cached_property
    def _extent(self) -> tuple[int, int]:
        low, high = self.table.aminmax()
        return int(low), int(high)

    def gather(self, pool: Tensor) -> Tensor:
        """The positions of each item one after the other: [batch, key heads, k_len, dim].

        After the end of an item they may hold anything.

        >>> pool = torch.arange(6.0).view(3, 1, 2, 1)
        >>> Pages([[2, 0]], [3]).gather(pool).flatten().tolist()
        [4.0, 5.0, 0.0]
        """
        blocks = -(-self.k_len // max(pool.shape[2], 1))
        table = self.table[:, :blocks].to(pool.device).long().clamp(0, max(len(pool) - 1, 0))
        return pool[table].transpose(1, 2).flatten(2, 3)[:, :, : self.k_len]

    def shared_prefixes(self, block_size: int) -> list[tuple[list[int], int]]:
        """Groups of items whose first blocks are the same: the items, and how many whole blocks they share.

        >>> Pages([[4, 1, 2], [4, 1, 3], [0, 6, 5]], [9, 10, 12]).shared_prefixes(4)
        [([0, 1], 2)]
        """
        groups: dict[int, list[int]] = {}
        if self.table.shape[1]:
            for item, first in enumerate(self.table[:, 0].tolist()):
                groups.setdefault(first, []).append(item)
        found = []
        for items in groups.values():
            whole = min(self.lengths[item] for item in items) // block_size
            if len(items) > 1 and whole:
                same = (self.table[items, :whole] == self.table[items[0], :whole]).all(0)
                found.append((items, int(same.cummin(0).values.sum())))
        return found
