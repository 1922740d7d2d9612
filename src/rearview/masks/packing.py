"""Several sequences in one tensor: packed one after another, or padded to one length.

>>> from rearview import causal, documents, padding
>>> causal() & documents([0, 0, 1, 1])
causal() & documents([0, 0, 1, 1])
>>> padding([1, 3]).spans(1, 3).rows(batch=0)
[[(0, 1)]]
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.data import as_data, as_lengths, described, printed
from rearview.masks.families import first_keys
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans


class Documents(Mask):
    """`ids`: int64 [T] or [batch, T]."""

    __slots__ = ("ids",)
    ids: Tensor

    def __init__(self, ids: Tensor):
        object.__setattr__(self, "ids", ids)

    @property
    def batch(self) -> int | None:
        return None if self.ids.ndim == 1 else self.ids.shape[0]

    def to(self, device: torch.device | str) -> Mask:
        return Documents(self.ids.to(device))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        ids, last = self.ids.to(key.device), self.ids.shape[-1] - 1
        # A query before the first key (more queries than keys) belongs to no document.
        known = query >= 0
        query, key = query.clamp(0, last), key.clamp(0, last)
        same = ids[query] == ids[key] if ids.ndim == 1 else ids[batch, query] == ids[batch, key]
        return same & known

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        ids = self.ids.to(device).view(-1, self.ids.shape[-1])
        starts, ends = _runs_of_each_id(ids)
        position = frame.query_positions(device).flatten()
        known = (position >= 0).view(1, -1, 1)
        rows = position.clamp(min=0).long()
        starts, ends = starts[:, rows], ends[:, rows].mul(known)
        return Spans.of(starts.unsqueeze(1), ends.unsqueeze(1), q_len=frame.q_len, k_len=frame.k_len)

    def _check(self, frame: Frame) -> None:
        known, needed = self.ids.shape[-1], max(frame.k_len, frame.q_end)
        if known < needed:
            raise BadArgument(
                "documents(ids)",
                expected=f"an id for each of the {needed} positions",
                came=f"{known} ids",
                advice="Give one id a position of the whole sequence, those in the cache included.",
            )

    def __repr__(self) -> str:
        return f"documents({printed(self.ids, 'ids')})"


class Padding(Mask):
    """`lengths`: int64 [batch]."""

    __slots__ = ("lengths",)
    lengths: Tensor

    def __init__(self, lengths: Tensor):
        object.__setattr__(self, "lengths", lengths)

    @property
    def batch(self) -> int | None:
        return len(self.lengths)

    def to(self, device: torch.device | str) -> Mask:
        return Padding(self.lengths.to(device))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < self.lengths.to(key.device)[batch]

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        return first_keys(self.lengths, frame, device)

    def __repr__(self) -> str:
        return f"padding({printed(self.lengths, 'lengths')})"


class RealKeys(Mask):
    """Padding on either side: `real` is bool [batch, T], True = a real key."""

    __slots__ = ("real",)
    real: Tensor

    def __init__(self, real: Tensor):
        object.__setattr__(self, "real", real)

    @property
    def batch(self) -> int | None:
        return self.real.shape[0]

    def to(self, device: torch.device | str) -> Mask:
        return RealKeys(self.real.to(device))

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        real = self.real.to(key.device)
        return real[batch, key.clamp(0, real.shape[-1] - 1)]

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        ranges = Spans.from_bool(self.real.to(device)[:, None, None, : frame.k_len])
        return Spans(ranges.starts, ranges.ends, q_len=frame.q_len, k_len=frame.k_len)

    def _check(self, frame: Frame) -> None:
        if self.real.shape[-1] < frame.k_len:
            raise BadArgument(
                "padding(real)",
                expected=f"a bool tensor [batch, T] that covers the {frame.k_len} keys",
                came=f"T = {self.real.shape[-1]}",
                advice="Append True for each key that the cache has gained.",
            )

    def __repr__(self) -> str:
        return f"padding({printed(self.real, 'keys')})"


# The public constructors: they check, the classes above trust.


def documents(ids: Sequence[int] | Sequence[Sequence[int]] | Tensor) -> Mask:
    """The same document only (packed training): positions with equal ids hear each other.

    `ids` is [T], or [batch, T] when the items are packed differently. It may be longer than the keys at hand:
    a cache that is still filling uses the ids of the positions that it holds.

    >>> from rearview import causal
    >>> (causal() & documents([0, 0, 1])).to_bool(3).int().tolist()
    [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    """
    tensor = as_data(ids, "documents(ids)", expected="integer ids [T] or [batch, T]")
    if tensor.ndim not in (1, 2) or tensor.is_floating_point() or tensor.is_complex() or tensor.numel() == 0:
        raise BadArgument(
            "documents(ids)", expected="integer ids [T] or [batch, T], at least one", came=described(tensor)
        )
    return Documents(tensor.long())


def padding(real: Sequence[int] | Sequence[Sequence[bool]] | Tensor) -> Mask:
    """Real keys only: how many each batch item has, or a bool [batch, T] that is True at real keys, left or right.

    >>> padding([1, 2]).to_bool(1, 2).int().tolist()
    [[[[1, 0]]], [[[1, 1]]]]
    """
    tensor = as_data(real, "padding(real)", expected="lengths [batch], or a bool tensor [batch, T]")
    if tensor.dtype != torch.bool:
        return Padding(as_lengths(tensor, "padding(lengths)"))
    if tensor.ndim != 2 or tensor.numel() == 0:
        raise BadArgument(
            "padding(real)", expected="lengths [batch], or a bool tensor [batch, T]", came=described(tensor)
        )
    return RealKeys(tensor)


def _runs_of_each_id(ids: Tensor) -> tuple[Tensor, Tensor]:
    """For each position of `ids` [batch, T] the runs of its own id: starts and ends [batch, T, runs]."""
    batch, length = ids.shape
    changes = torch.ones_like(ids, dtype=torch.bool)
    changes[:, 1:] = ids[:, 1:] != ids[:, :-1]
    row, start = changes.nonzero(as_tuple=True)
    end = torch.cat([start[1:], start.new_tensor([0])])
    end[torch.cat([row[1:] != row[:-1], row.new_ones(1, dtype=torch.bool)])] = length
    # Number the documents 0..n-1 over the whole batch, so that equal ids in two items stay apart.
    _, small = torch.unique(ids, return_inverse=True)
    here = torch.arange(batch, device=ids.device).unsqueeze(1) * (small.max() + 1) + small
    kinds, document = torch.unique(here, return_inverse=True)
    owner = document[row, start]
    order = owner.argsort(stable=True)
    runs = torch.bincount(owner, minlength=len(kinds))
    # The n-th run of its document goes to slot n.
    slot = torch.arange(len(owner), device=ids.device) - (runs.cumsum(0) - runs)[owner[order]]
    table = ids.new_zeros(2, len(kinds), int(runs.max()), dtype=torch.int32)
    table[0, owner[order], slot] = start[order].int()
    table[1, owner[order], slot] = end[order].int()
    return table[0, document], table[1, document]
