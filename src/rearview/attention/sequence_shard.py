"""The part of a sequence that this process holds, while `rearview.parallel` spreads the sequence over several.

    >>> active_shard() is None
    True

`with layout.on(mesh):` of `rearview.parallel` makes a shard active. Inside, tensors hold this rank's rows, and masks
and positions speak of the whole sequence. What reads positions asks `active_shard`; a `Call` carries the shard that
was active when it was made.

The active shard belongs to the process and not to a thread, as process groups do: backward passes run in other
threads, where gradient checkpointing computes a part of the forward pass again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rearview.errors import Unsupported
from rearview.masks import Mask

if TYPE_CHECKING:
    from rearview.attention.call import Call


class SequenceShard(Protocol):
    """This rank's rows of a sequence, and the exchange that brings the keys of other ranks."""

    @property
    def length(self) -> int:
        """The number of positions of the whole sequence."""
        ...

    @property
    def rows(self) -> int:
        """The number of positions that this rank holds."""
        ...

    def positions_on(self, device: torch.device | str) -> Tensor:
        """The positions of this rank's rows in the whole sequence, int64 [rows], in increasing order."""
        ...

    def narrowed(self, mask: Mask) -> Mask:
        """The mask of a call, narrowed by the mask that the layout was activated with."""
        ...

    def exchanged(self, call: Call) -> Call:
        """The same call over the keys that this rank's queries hear, brought from the ranks that hold them."""
        ...

    def planned(self, call: Call) -> Call:
        """The same as `exchanged` without an exchange: the keys and values are zeros."""
        ...


_active: list[SequenceShard | None] = []


def active_shard() -> SequenceShard | None:
    """The shard of the innermost `with layout.on(...)`; None outside."""
    return _active[-1] if _active else None


@contextmanager
def activated(shard: SequenceShard | None) -> Iterator[None]:
    """Make `shard` active for a block of code. None leaves things as they are."""
    if shard is None:
        yield
        return
    _active.append(shard)
    try:
        yield
    finally:
        _active.pop()


@contextmanager
def local_keys() -> Iterator[None]:
    """For an operator that makes a call again from its tensors: they are of local keys, so no shard is active.

    >>> with local_keys():
    ...     active_shard() is None
    True
    """
    _active.append(None)
    try:
        yield
    finally:
        _active.pop()


def refuse_shard(what: str, shard: SequenceShard | None = None, *, advice: str = "") -> None:
    """Raise `Unsupported` for what is not done while a sequence is spread over several ranks.

    `shard` is that of a call, by default the active one.

    >>> refuse_shard("a cache")    # no layout is active
    """
    shard = active_shard() if shard is None else shard
    if shard is not None:
        reason = f"this rank holds {shard.rows} of {shard.length} positions"
        raise Unsupported(f"{what} cannot be used on a layout", [reason], advice=advice)
