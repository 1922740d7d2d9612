"""Layout: a sequence over several ranks: which positions each holds, what each computes, and which keys travel.

    >>> from rearview import causal, window
    >>> from rearview.parallel import shard
    >>> layout = shard(causal() & window(16), length=100, ranks=4)
    >>> layout.how, layout.tokens, layout.keys_received
    ('contiguous', (25, 25, 25, 25), (0, 15, 15, 15))

A layout is a pure value: every rank makes the same one from the same arguments, without talking to the others.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rearview.attention.sequence_shard import activated, active_shard
from rearview.errors import BadArgument
from rearview.masks import Frame, Mask
from rearview.masks.frame import whole_number
from rearview.parallel.agreement import Agreements
from rearview.parallel.balancing import cost
from rearview.parallel.layout_shard import LayoutShard, RecentPlans
from rearview.parallel.needs import Needs
from rearview.parallel.pieces import Pieces
from rearview.parallel.rank_group import RankGroup, Ranks
from rearview.parallel.rows import gathered
from rearview.parallel.workload import Workload, spans_of

if TYPE_CHECKING:
    from rearview.drawing.text import Drawing


class Transfer(NamedTuple):
    """The keys at positions start..end-1 of batch item `item` (0 where items share the mask), for mask `mask`."""

    receiver: int
    sender: int
    start: int
    end: int
    item: int
    mask: int


@dataclass(frozen=True, eq=False)
class Layout:
    """What `shard` returns. `print(layout)` shows a table, `layout.show()` a drawing.

    `how` is the placement: "contiguous", "head-tail", "area" or "dealt". `key_bytes` are the bytes of one key with its
    value in one layer, which `print` uses.
    """

    work: Workload
    how: str
    owners: Tensor
    key_bytes: int
    ranks_here: RankGroup | None = None
    # The placements that "best" compared this one with.
    others: tuple[Layout, ...] = ()
    # The plans of recent masks, and what ranks have found to be equal, which the blocks of all steps share.
    plans: RecentPlans = field(default_factory=RecentPlans)
    agreements: Agreements = field(default_factory=Agreements)

    @property
    def length(self) -> int:
        return self.work.length

    @property
    def ranks(self) -> int:
        return self.work.ranks

    @cached_property
    def pieces(self) -> Pieces:
        """Which rank holds which positions, as runs."""
        return self.work.pieces(self.owners)

    @property
    def tokens(self) -> tuple[int, ...]:
        """The number of positions that each rank holds."""
        return self.pieces.tokens

    @cached_property
    def area(self) -> tuple[int, ...]:
        """The visible (query, key) pairs of each rank: of all layers and batch items, for one head."""
        return tuple((self.work.area_of(self.owners) // self.work.area_unit).tolist())

    @cached_property
    def balance(self) -> float:
        """The visible area of the slowest rank over the mean: 1.0 is perfect."""
        area = self.work.area_of(self.owners)
        return self.ranks * int(area.max()) / max(1, int(area.sum()))

    @cached_property
    def keys_received(self) -> tuple[int, ...]:
        """The keys that each rank receives in one forward pass: of all layers, and of all batch items that differ."""
        return tuple(self.work.received(self.owners).tolist())

    @property
    def keys_gathered(self) -> tuple[int, ...]:
        """The keys that each rank would receive if all keys were gathered everywhere."""
        times = self.work.items * sum(self.work.layers)
        return tuple((self.length - tokens) * times for tokens in self.tokens)

    @cached_property
    def cost(self) -> float:
        """What `shard` compares placements by: balance - 1 + keys received / (2 x those of an all-gather)."""
        return cost(self.work, self.owners)

    def needs_of(self, mask: Mask) -> Needs:
        """The keys that each rank needs for a mask."""
        for known, needs in zip(self.work.masks, self.work.needs, strict=True):
            if known is mask:
                return needs.of_ranks(self.owners)
        owners = self.pieces.owner_of(torch.arange(self.length))
        return Needs.of_queries(spans_of(mask, self.length), owners)

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """The runs of keys that travel in a forward pass, once per mask: from whom, to whom.

        >>> from rearview import causal, window
        >>> from rearview.parallel import shard
        >>> shard(causal() & window(3), 8, ranks=2, how="contiguous").transfers
        (Transfer(receiver=1, sender=0, start=2, end=4, item=0, mask=0),)
        """
        found = []
        for mask, (runs, senders) in enumerate(self.work.travelling(self.owners)):
            columns = (runs.group, senders, runs.starts, runs.ends, runs.item)
            found += [Transfer._make([*row, mask]) for row in torch.stack(columns, 1).tolist()]
        return tuple(found)

    # This rank.

    def positions_of(self, rank: int) -> Tensor:
        """The positions that a rank holds, in increasing order: int64."""
        return self.pieces.positions_of(self._rank(rank))

    @property
    def positions(self) -> Tensor:
        """The positions of this rank's rows in the whole sequence, for rotary and learned positions: int64."""
        return self.pieces.positions_of(self._rank(None))

    def split(self, x: Tensor, dim: int = 1, *, rank: int | None = None) -> Tensor:
        """This rank's rows of a tensor that has all positions along `dim`; of any rank with `rank=`.

        >>> from rearview import causal
        >>> from rearview.parallel import shard
        >>> ids = torch.arange(8).view(1, 8)
        >>> shard(causal(), 8, ranks=2, how="head-tail").split(ids, rank=0).tolist()
        [[0, 1, 6, 7]]
        """
        self._check_rows(x, dim, self.length, f"{self.length} positions, the whole sequence")
        return x.index_select(dim, self.pieces.positions_of(self._rank(rank)).to(x.device))

    def join(self, y: Tensor, dim: int = 1) -> Tensor:
        """The rows of all ranks in the order of positions, on every rank; all ranks must call it.

        Gradients flow to this rank's rows, for a loss that every rank computes alike from the joined rows.
        """
        ranks = self._ranks()
        rows = self.tokens[ranks.rank]
        self._check_rows(y, dim, rows, f"the {rows} rows of this rank")
        order = torch.cat([self.pieces.positions_of(rank) for rank in range(self.ranks)])
        return gathered(y, dim, self.tokens, ranks).index_select(dim, order.argsort().to(y.device))

    def labels(self, ids: Tensor, dim: int = 1, *, ignore: int = -100, rank: int | None = None) -> Tensor:
        """The token after each of this rank's rows; `ignore` after the last position.

        `ids` is the whole sequence: it is shifted first and then cut, because the next token of a row is often held by
        another rank.

        >>> from rearview import causal
        >>> from rearview.parallel import shard
        >>> layout = shard(causal(), 8, ranks=2, how="head-tail")
        >>> layout.labels(torch.arange(8).view(1, 8), rank=0).tolist()
        [[1, 2, 7, -100]]
        """
        self._check_rows(ids, dim, self.length, f"{self.length} positions, the whole sequence")
        following = ids.roll(-1, dim)
        following.select(dim, -1).fill_(ignore)
        return self.split(following, dim, rank=rank)

    @contextmanager
    def on(self, mesh: Ranks | None = None, *, mask: Mask | None = None) -> Iterator[Layout]:
        """Inside the block, tensors are this rank's rows, and masks and positions refer to the whole sequence.

        Args:
            mesh: one axis of a DeviceMesh, such as `mesh["cp"]`, or a process group; by default what `shard` was given.
            mask: narrows the mask of every call inside, for models that take no `Mask`, such as those of transformers:
                `documents(ids)` for packed documents, `padding(lengths)`.
        """
        if mesh is None and self.ranks_here is None:
            advice = 'Use layout.on(mesh["cp"]), or make the layout with shard(mask, length, mesh["cp"]).'
            raise BadArgument("mesh", expected="the ranks of this layout", got=None, advice=advice)
        ranks = self.ranks_here if mesh is None else RankGroup.of(mesh, size=self.ranks)
        assert ranks is not None
        if mask is not None:
            if not isinstance(mask, Mask):
                raise BadArgument("mask", expected="a Mask such as documents(ids)", got=type(mask).__name__)
            mask._check(Frame.of(self.length))
        if active_shard() is not None:
            advice = "Leave the other block first."
            raise BadArgument(
                "layout.on", expected="no other active layout", got="a layout inside another", advice=advice
            )
        shard = LayoutShard(self, ranks, mask)
        with activated(shard):
            yield replace(self, ranks_here=ranks)
        if not shard.exchanges:
            warnings.warn(
                "No attention ran on the layout. A transformers model runs on it with "
                'attn_implementation="rearview" only; with others, each rank hears its own rows alone.',
                stacklevel=3,
            )

    def _ranks(self) -> RankGroup:
        if self.ranks_here is not None:
            return self.ranks_here
        shard = active_shard()
        if isinstance(shard, LayoutShard) and shard.layout is self:
            return shard.ranks
        advice = 'Give rank=, make the layout with shard(mask, length, mesh["cp"]), or enter layout.on(mesh["cp"]).'
        raise BadArgument("rank", expected="this process's rank", got="a layout of no process group", advice=advice)

    def _rank(self, rank: int | None) -> int:
        if rank is None:
            return self._ranks().rank
        rank = whole_number(rank, "rank", at_least=0)
        if rank >= self.ranks:
            raise BadArgument("rank", expected=f"one of {self.ranks} ranks, from 0", got=rank)
        return rank

    @staticmethod
    def _check_rows(x: Tensor, dim: int, rows: int, expected: str) -> None:
        if not isinstance(x, Tensor):
            raise BadArgument("x", expected="a tensor", got=type(x).__name__)
        if not -x.ndim <= dim < x.ndim:
            raise BadArgument("dim", expected=f"an axis of a tensor of shape {list(x.shape)}", got=dim)
        if x.shape[dim] != rows:
            raise BadArgument("x", expected=f"{expected}, along dim {dim}", got=list(x.shape))

    # For people.

    def __str__(self) -> str:
        from rearview.parallel.report import table

        return str(table(self))

    def table(self) -> Drawing:
        """What `print(layout)` shows: tokens, visible area, keys and bytes of each rank, and what others would cost."""
        from rearview.parallel.report import table

        return table(self)

    def show(self) -> Drawing:
        """A drawing for the terminal: the positions that each rank holds, and those whose keys it receives.

        >>> from rearview import causal, window
        >>> from rearview.parallel import shard
        >>> print(shard(causal() & window(9), 64, ranks=2, how="contiguous").show())
        causal() & window(9)  ·  64 positions over 2 ranks  ·  contiguous
        <BLANKLINE>
         rank  0               16              32              48
            0  ████████████████████████████████································
            1  ························▒▒▒▒▒▒▒▒████████████████████████████████
        <BLANKLINE>
         █ held   ▒ keys received   · neither
        """
        from rearview.parallel.report import drawing

        return drawing(self)

    def save_picture(self, path: str | os.PathLike[str]) -> None:
        """Write an `.svg`, `.png` or `.pdf`: positions held and received by each rank, its area and its traffic.

        >>> from rearview import causal
        >>> from rearview.parallel import shard
        >>> shard(causal(), 64, ranks=2).save_picture("layout.svg")    # doctest: +SKIP
        """
        from rearview.parallel.picture import save_picture

        save_picture(self, path)

    def __repr__(self) -> str:
        masks = ", ".join(map(repr, self.work.masks))
        return (
            f"Layout({masks}, length={self.length}, ranks={self.ranks}, how={self.how!r}, balance={self.balance:.3f})"
        )
