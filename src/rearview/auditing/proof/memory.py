"""The sets of each storage. Views share a storage, so a write through one of them is seen by all.

A record belongs to a storage, not to a tensor. It has one layout (sizes, strides, offset) with its sets, the root, and
in `views` the sets of other layouts that were read. A write through a layout updates the root and drops the views,
which are then read from the root again.

>>> import torch
>>> from rearview.auditing.proof.sets import sources
>>> memory = Memory(columns=6)
>>> base = torch.zeros(1, 4)
>>> memory.new(base, None)
>>> memory.write(base[:, 1:], sources(batch=1, time=3))
>>> memory.read(base).int().tolist()
[[[0, 0, 0, 0, 0, 0], [1, 0, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0], [0, 0, 1, 1, 0, 0]]]
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from rearview.auditing.proof.sets import LOW, compact, everything, spread

# Bytes per element, offset, sizes, strides.
Layout = tuple[int, int, tuple[int, ...], tuple[int, ...]]

# The number of new records after which records of freed storages are dropped.
SWEEP = 512


def layout_of(tensor: Tensor) -> Layout:
    return tensor.element_size(), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride()


def addresses(tensor: Tensor) -> Tensor:
    """The address of each element, in elements of the storage."""
    length = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.arange(length).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).flatten()


def overlaps_itself(tensor: Tensor) -> bool:
    """Whether several elements share an address.

    >>> x = torch.zeros(4)
    >>> overlaps_itself(x.view(2, 2).t()), overlaps_itself(x.unfold(0, 2, 1))
    (False, True)
    """
    reach = 1
    axes = [(stride, size) for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
    for stride, size in sorted(axes):
        if stride < reach:
            found = addresses(tensor)
            return len(found.unique()) < len(found)
        reach = stride * (size - 1) + reach
    return False


def overlap_partly(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one storage share memory, but not element by element.

    >>> x = torch.zeros(4)
    >>> overlap_partly(x[1:], x[:-1]), overlap_partly(x[:2], x[2:]), overlap_partly(x, x.view(4))
    (True, False, False)
    """
    if layout_of(one) == layout_of(other):
        return False
    if one.element_size() != other.element_size():
        return True
    return bool(torch.isin(addresses(one), addresses(other)).any())


@dataclass(slots=True)
class StorageRecord:
    """One storage. While the weak reference exists, its address is not given to another storage."""

    alive: StorageWeakRef
    itemsize: int
    length: int
    layout: Layout
    sets: Tensor | None
    # Sets are shared between tensors and never change, except for a root that has not been read.
    private: bool = False
    views: dict[Layout, Tensor | None] = field(default_factory=dict)
    # What else is known of a layout until the next write: see `routes.py`.
    tags: dict[Layout | int, tuple[Any, Tensor | None]] = field(default_factory=dict)
    routes: dict[Layout, dict[str, Any]] = field(default_factory=dict)
    selected: bool = False
    # Whether the program can read the memory without an op: it is from outside of the run, or was given to numpy.
    exposed: bool = False

    @property
    def whole(self) -> Layout:
        """The storage as a vector."""
        return self.itemsize, 0, (self.length,), (1,)


class Memory:
    """Sets by storage. `foreign(tensor)` gives the sets of storages from before the run."""

    def __init__(
        self,
        *,
        columns: int,
        foreign: Callable[[Tensor], Tensor | None] | None = None,
        device: torch.device | str = "cpu",
    ):
        self.columns = columns
        self.device = device
        self.foreign = foreign
        self.records: dict[int, StorageRecord] = {}
        self.fresh = 0

    def key(self, tensor: Tensor) -> int:
        return tensor.untyped_storage()._cdata

    def known(self, tensor: Tensor) -> bool:
        return self.key(tensor) in self.records

    def new(self, tensor: Tensor, sets: Tensor | None) -> None:
        """A tensor with a storage of its own."""
        storage = tensor.untyped_storage()
        size = tensor.element_size()
        self.records[storage._cdata] = StorageRecord(
            StorageWeakRef(storage), size, storage.nbytes() // size, layout_of(tensor), sets
        )
        self.fresh += 1
        if self.fresh > SWEEP:
            self.fresh = 0
            self.records = {key: record for key, record in self.records.items() if not record.alive.expired()}

    def record(self, tensor: Tensor) -> StorageRecord:
        record = self.records.get(self.key(tensor))
        if record is None:
            sets = self.foreign(tensor) if self.foreign is not None else None
            self.new(tensor, None)
            record = self.records[self.key(tensor)]
            # The whole storage has the same sets, whichever part of it is seen first.
            record.layout, record.exposed = record.whole, True
            record.sets = None if sets is None else sets.view(1, self.columns)
        return record

    def read(self, tensor: Tensor) -> Tensor | None:
        record = self.record(tensor)
        if record.sets is None:
            return None
        layout = layout_of(tensor)
        if layout == record.layout:
            record.private = False
            return record.sets
        if layout in record.views:
            return record.views[layout]
        if all(size == 1 for size in record.sets.shape[:-1]):
            sets = record.sets.reshape(*[1] * tensor.dim(), self.columns).clone()
        elif tensor.element_size() != record.itemsize:
            sets = self.joined(record, tensor.dim())
        else:
            sets = compact(self.strided(self.flat(record), tensor)).clone()
        record.views[layout] = sets
        return sets

    def view(self, tensor: Tensor, sets: Tensor | None) -> None:
        """Keep the sets of a layout that a rule has found, which need not be read from the root then."""
        record = self.record(tensor)
        layout = layout_of(tensor)
        if record.sets is not None and layout != record.layout:
            record.views[layout] = sets

    def taint(self, tensor: Tensor, union: Tensor) -> None:
        """Add these sets, [columns], to every element of the storage."""
        record = self.record(tensor)
        old = everything(record.sets)
        record.views, record.tags, record.routes = {}, {}, {}
        record.layout, record.private = record.whole, False
        record.sets = (union if old is None else old | union).view(1, self.columns)

    def tag(self, tensor: Tensor) -> Any:
        record = self.records.get(self.key(tensor))
        if record is None or not record.tags:
            return None
        return record.tags.get(layout_of(tensor) if tensor.numel() else id(tensor), (None, None))[0]

    def set_tag(self, tensor: Tensor, tag: Any, *, selected: bool) -> None:
        record = self.record(tensor)
        # All parts of an empty tensor have the same layout. The tensor is kept, so that no other has its identity.
        record.tags[layout_of(tensor) if tensor.numel() else id(tensor)] = tag, tensor if not tensor.numel() else None
        record.selected |= selected

    def selected(self, tensor: Tensor) -> bool:
        """Whether a value decided the length of this storage."""
        record = self.records.get(self.key(tensor))
        return record is not None and record.selected

    def routes(self, tensor: Tensor) -> dict[str, Any]:
        return self.record(tensor).routes.setdefault(layout_of(tensor), {})

    def write(self, tensor: Tensor, sets: Tensor | None) -> None:
        """Give the elements of `tensor` these sets, for all tensors that share them."""
        record = self.record(tensor)
        layout = layout_of(tensor)
        if tensor.untyped_storage().nbytes() // record.itemsize != record.length:
            # `out=` has resized it.
            self.new(tensor, sets)
            self.records[self.key(tensor)].exposed = record.exposed
            return
        record.views, record.tags, record.routes = {}, {}, {}
        if tensor.element_size() != record.itemsize or overlaps_itself(tensor):
            # Which of several elements at one address is written last is not known.
            union = self.joined(record, 1)
            new = everything(sets)
            record.layout, record.private = record.whole, False
            record.sets = union if new is None else new.view(1, -1) if union is None else union | new
        elif layout == record.layout:
            record.sets, record.private = sets, False
        else:
            flat = self.flat(record)
            if record.sets is not None and not record.private and flat.data_ptr() == record.sets.data_ptr():
                flat = flat.clone()
            part = self.strided(flat, tensor)
            part.copy_(spread(sets, tensor.shape)) if sets is not None else part.zero_()
            # Constants that were written part by part are constants.
            is_constant = sets is None and not flat.any()
            record.layout, record.sets, record.private = record.whole, None if is_constant else flat, True
            record.views[layout] = sets

    def joined(self, record: StorageRecord, ndim: int) -> Tensor | None:
        union = everything(record.sets)
        return None if union is None else union.view(*[1] * ndim, self.columns)

    def strided(self, flat: Tensor, tensor: Tensor) -> Tensor:
        columns = self.columns
        strides = [stride * columns for stride in tensor.stride()]
        return flat.as_strided((*tensor.shape, columns), (*strides, 1), tensor.storage_offset() * columns)

    def flat(self, record: StorageRecord) -> Tensor:
        """[length of the storage, columns]. Outside of the root nothing was written, so anything may be there."""
        _, offset, shape, strides = record.layout
        if record.layout == record.whole and record.sets is not None:
            return record.sets.expand(record.length, self.columns).contiguous()
        flat = torch.zeros(record.length, self.columns, dtype=torch.bool, device=self.device)
        flat[:, :LOW] = True
        root = flat.as_strided(
            (*shape, self.columns), (*[stride * self.columns for stride in strides], 1), offset * self.columns
        )
        root.copy_(spread(record.sets, shape)) if record.sets is not None else root.zero_()
        return flat
