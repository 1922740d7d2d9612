"""Queries and keys that were kept, and what is computed from them later: exact weights, larger maps.

>>> import torch
>>> from rearview import causal
>>> from rearview.observe.glance import Glance
>>> x = torch.randn(1, 2, 5, 8)
>>> whole = Kept((Glance.of(x, x, mask=causal()),))
>>> prompt, step = Glance.of(x[:, :, :3], x[:, :, :3], mask=causal()), Glance.of(x[:, :, 3:], x, mask=causal())
>>> steps = Kept((prompt,)).and_then(step)
>>> torch.allclose(whole.tile(range(5), range(5), 0, 1), steps.tile(range(5), range(5), 0, 1), atol=1e-6)
True
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rearview.attention.statistics import Statistics, weights_tile
from rearview.observe.glance import Glance

# What "auto" spends on queries and keys, all layers together.
AUTO_BYTES = 256 * 2**20


@dataclass(frozen=True, eq=False)
class Kept:
    """The calls of one layer, in order, on the CPU and in their own dtype. Each holds only the keys that it added."""

    glances: tuple[Glance, ...]
    # All keys that the calls so far have heard; in cross attention the first call brings them all.
    k_len: int = 0

    def __post_init__(self) -> None:
        if not self.k_len:
            object.__setattr__(self, "glances", tuple(_stored(glance) for glance in self.glances))
            object.__setattr__(self, "k_len", self.glances[-1].key.shape[2])

    @property
    def bytes(self) -> int:
        """The memory that they take."""
        return sum(cost(glance) for glance in self.glances)

    @property
    def group(self) -> int:
        """How many heads share a key head."""
        return self.glances[0].query.shape[1] // self.glances[0].key.shape[1]

    def and_then(self, glance: Glance) -> Kept:
        """These calls and the next one."""
        new = replace(glance, key=glance.key[:, :, self.k_len :])
        return Kept((*self.glances, _stored(new)), max(self.k_len, glance.key.shape[2]))

    def tile(self, rows: range, cols: range, item: int, row: int) -> Tensor:
        """Exact weights [rows, cols] of one batch item and head."""
        found = []
        for glance in self.calls(item, row):
            asked = range(max(rows.start, glance.q_start), min(rows.stop, glance.q_end))
            if not asked:
                continue
            heard = range(cols.start, min(cols.stop, glance.key.shape[2]))
            weights = torch.zeros(len(asked), len(cols))
            if heard:
                own = range(asked.start - glance.q_start, asked.stop - glance.q_start)
                exact = weights_tile(glance.query, glance.key, own, heard, **glance.options)[0, 0]
                weights = torch.nn.functional.pad(exact, (0, len(cols) - len(heard)))
            found.append(weights)
        return torch.cat(found)

    def statistics(self, *, map_size: int, links: int = 0) -> Statistics:
        """The statistics again, with another map."""
        joined = None
        for glance in self.calls():
            joined = glance.statistics(joined, map_size=map_size, links=links)
        assert joined is not None
        return joined

    def calls(self, item: int | None = None, row: int | None = None) -> Iterator[Glance]:
        """Each call with all the keys that it heard; of one batch item and head, if given."""
        chosen = [g if item is None or row is None else g.single(item, row) for g in self.glances]
        keys, end = torch.cat([glance.key for glance in chosen], dim=2), 0
        for glance in chosen:
            end += glance.key.shape[2]
            yield replace(glance, key=keys[:, :, :end])


def cost(glance: Glance) -> int:
    """The memory of a call, its mask and bias included where they are tensors of query x key."""
    tensors = [glance.query, glance.key, glance.bias if isinstance(glance.bias, Tensor) else None]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None]
    # A mask without ranges holds at most one byte for each query and key of each item.
    rows = 0 if glance.mask.has_ranges else (glance.mask.batch or 1) * (glance.mask.heads or 1) * glance.query.shape[2]
    return sum(sizes) + rows * glance.key.shape[2]


def _stored(glance: Glance) -> Glance:
    # A copy: what is kept must not hold on to a whole cache, nor change with it.
    def copy(tensor: Tensor) -> Tensor:
        return tensor.detach().to("cpu", copy=True).contiguous()

    return replace(
        glance,
        query=copy(glance.query),
        key=copy(glance.key),
        mask=glance.mask.to("cpu"),
        bias=copy(glance.bias) if isinstance(glance.bias, Tensor) else glance.bias,
        sinks=None if glance.sinks is None else copy(glance.sinks),
    )
