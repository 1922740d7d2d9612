"""The calls of a layer with their queries and keys, and what is computed from them later: exact weights, larger maps.

>>> import torch
>>> from rearview.attention.call import Call
>>> x = torch.randn(1, 2, 5, 8)
>>> whole = RetainedCalls.of(Call.of(x, x, x))
>>> prompt, step = Call.of(x[:, :, :3], x[:, :, :3], x[:, :, :3]), Call.of(x[:, :, 3:], x, x)
>>> steps = RetainedCalls.of(prompt).and_then(step)
>>> torch.allclose(whole.tile(range(5), range(5), 0, 1), steps.tile(range(5), range(5), 0, 1), atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.call_slices import one_head
from rearview.attention.stats import Statistics, relative_links, statistics_of, tile_of

# The bytes that keep="auto" allows for queries and keys, all layers together.
AUTO_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class RetainedCalls:
    """The calls of one layer, in order, on the CPU and in their own dtype, in the positions of the whole sequence.

    A stored call holds only the keys that it added; `calls` gives each call all of its keys.
    """

    stored: tuple[Call, ...]

    @classmethod
    def of(cls, call: Call) -> RetainedCalls:
        """The first call of a sequence."""
        return cls((_stored(call, call.key),))

    def and_then(self, call: Call) -> RetainedCalls:
        """These calls and the next one."""
        return RetainedCalls((*self.stored, _stored(call, self.new_keys(call))))

    @property
    def k_len(self) -> int:
        """The number of keys of all calls; in cross attention the first call brings all of them."""
        return max(call.frame.k_len for call in self.stored)

    @property
    def bytes(self) -> int:
        """The memory that the calls take."""
        return sum(cost(call, call.key) for call in self.stored)

    @property
    def queries_per_key_head(self) -> int:
        """The number of query heads that share a key head."""
        return self.stored[0].queries_per_key_head

    def new_keys(self, call: Call) -> Tensor:
        """The keys that a call adds to those that are there."""
        return call.key[:, :, self.k_len :]

    def tile(self, rows: range, cols: range, item: int, row: int) -> Tensor:
        """Exact weights [rows, cols] of one batch item and head."""
        found = []
        for call in self.calls(item, row):
            frame = call.frame
            asked = range(max(rows.start, frame.q_start), min(rows.stop, frame.q_end))
            if not asked:
                continue
            heard = range(cols.start, min(cols.stop, frame.k_len))
            weights = torch.zeros(len(asked), len(cols))
            if heard:
                own = range(asked.start - frame.q_start, asked.stop - frame.q_start)
                weights = F.pad(tile_of(call, own, heard)[0, 0], (0, len(cols) - len(heard)))
            found.append(weights)
        return torch.cat(found)

    def statistics(self, *, map_size: int, links: int = 0) -> Statistics:
        """The statistics of all calls, computed again with another map."""
        joined = None
        for call in self.calls():
            joined = extended(joined, call, map_size=map_size, links=links)
        assert joined is not None
        return joined

    def relative_links(self, item: int, row: int, count: int) -> list[tuple[float, float, int, int]]:
        """The links of one batch item and head that are the largest multiple of an equal share, largest first.

        Each is (multiple, weight, query, key).
        """
        found: list[tuple[float, float, int, int]] = []
        for call in self.calls(item, row):
            links, times = relative_links(call, count)
            columns = (times, links.weight, links.query, links.key)
            found += zip(*(column[0, 0].tolist() for column in columns), strict=True)
        heard = [link for link in found if link[1] > 0]
        return sorted(heard, key=lambda link: (-link[0], *link[2:]))[:count]

    def calls(self, item: int | None = None, row: int | None = None) -> Iterator[Call]:
        """Each call with all the keys that it had; for one batch item and head, if given."""
        chosen = [call if item is None or row is None else one_head(call, item, row) for call in self.stored]
        keys, end = torch.cat([call.key for call in chosen], dim=2), 0
        for call in chosen:
            end += call.key.shape[2]
            yield replace(call, key=keys[:, :, :end], value=keys[:, :, :end])


def extended(earlier: Statistics | None, call: Call, *, map_size: int | None, links: int) -> Statistics:
    """The statistics of the earlier calls of a sequence and of the next one."""
    if earlier is None:
        return statistics_of(call, map_size=map_size, links=links)
    width = None
    if map_size is not None:
        # A bin of the longer sequence is one, two, four ... bins of the shorter.
        width = earlier.bin_width
        while width * map_size < max(call.frame.q_end, call.frame.k_len):
            width *= 2
    return earlier.joined(statistics_of(call, map_size=map_size, links=links, bin_width=width))


def cost(call: Call, new_keys: Tensor) -> int:
    """The memory of a call that adds these keys, including a mask or a bias that is a tensor of query x key."""
    tensors = [call.query, new_keys, *([call.bias] if isinstance(call.bias, Tensor) else [])]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    # A mask without ranges holds at most one byte for each query and key of each item.
    rows = 0 if call.mask.has_ranges else (call.mask.batch or 1) * (call.mask.heads or 1) * call.frame.q_len
    return sum(sizes) + rows * new_keys.shape[2]


def _stored(call: Call, new_keys: Tensor) -> Call:
    # A copy: what is stored must not hold on to a whole cache, nor change with it.
    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True).contiguous()

    key = copy(new_keys)
    return replace(
        call,
        query=copy(call.query),
        key=key,
        value=key,
        mask=call.mask.to("cpu"),
        bias=copy(call.bias) if isinstance(call.bias, Tensor) else call.bias,
        sinks=None if call.sinks is None else copy(call.sinks),
    )
