"""Where a tensor inside a model differs between two runs: only where it may, or also where it must not.

>>> import torch
>>> from rearview.auditing.place.views import TimeView
>>> view = TimeView(watched=torch.tensor([True, True, True, False]))
>>> clean = torch.zeros(1, 4, 8)
>>> other = clean.clone()
>>> other[0, 3] = 1
>>> view.state(clean, other), view.state(clean, other.flip(1)), view.state(clean.sum(1), other.sum(1))
('clean', 'dirty', 'lost')

`positions.py` knows the position of each element. A difference is forbidden only where all maps of a tensor say that
the position is watched: scores [query, key] may differ wherever the query or the key may. Where an element has no
position (a mean over time, a memory token), time is *lost*: it differs, and it is not known for which positions.

After an op that cannot be followed, positions are not known. There every axis as long as the input counts as time, and
axes flattened with the batch are recognized. Where time may have been split, or cut into chunks, a tensor that is clean
under this reading is *guessed* to be clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from rearview.auditing.place.positions import Maps

State = Literal["same", "clean", "guessed", "stretched", "lost", "dirty"]


class View(Protocol):
    def state(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> State:
        """How the tensor differs in the other run; `maps` hold its positions, where they are known."""
        ...

    def repair(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> Tensor:
        """The other tensor with its clean values wherever it must not differ."""
        ...


def differs(clean: Tensor, other: Tensor) -> Tensor:
    """Elementwise inequality; NaN is equal to NaN."""
    unequal = clean != other
    if clean.is_floating_point() or clean.is_complex():
        unequal &= ~(clean.isnan() & other.isnan())
    return unequal


def watched_at(maps: Maps, watched: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """bool, broadcastable to the shape: where all maps are watched; and where each is, or has no position."""
    certain, possible = torch.tensor(True), torch.tensor(True)
    for positions in maps:
        for axis, size in enumerate(shape):
            positions = positions.narrow(axis, 0, min(size, positions.shape[axis]))
        nowhere = (positions < 0) | (positions >= len(watched))
        here = watched.cpu()[positions.clamp(0, len(watched) - 1)]
        certain, possible = certain & here & ~nowhere, possible & (here | nowhere)
    return certain, possible


def _by_position(unequal: Tensor, maps: Maps, watched: Tensor) -> State:
    if not maps:
        return "lost"
    certain, possible = (mask.to(unequal.device) for mask in watched_at(maps, watched, unequal.shape))
    if bool((unequal & certain).any()):
        return "dirty"
    return "lost" if bool((unequal & possible).any()) else "clean"


@dataclass(frozen=True, eq=False)
class TimeView:
    """Two inputs of one length that differ at some positions; the `watched` ones must not."""

    watched: Tensor
    batch: int = 1
    steps: tuple[int, ...] = ()
    """The lengths of the steps, where the model runs with a cache: the queries are then those of one step."""

    def state(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> State:
        if clean.shape != other.shape:
            return "lost"
        unequal = differs(clean, other)
        if not bool(unequal.any()):
            return "same"
        if maps is not None:
            return _by_position(unequal, maps, self.watched)
        mask = self.mask(clean)
        if mask is not None:
            return "dirty" if bool((unequal & mask).any()) else "clean"
        if any(not bool((unequal & guess).any()) for guess in self._guesses(clean)):
            return "guessed"
        return "stretched" if self._is_stretched(unequal) else "lost"

    def repair(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> Tensor:
        return _repaired(clean, other, self.watched, maps, self.mask)

    def mask(self, tensor: Tensor) -> Tensor | None:
        """bool, broadcastable to the tensor: where all time axes are watched. None where there is no time axis."""
        shape = tensor.shape
        parts = self._parts()
        found = [(axis, parts[size]) for axis, size in enumerate(shape) if size in parts]
        if not found:
            flat = {self.batch * size: part.repeat(self.batch) for size, part in parts.items()}
            found = [(axis, flat[size]) for axis, size in enumerate(shape) if size in flat]
        mask: Tensor | None = None
        for axis, part in found:
            along = _along(part.to(tensor.device), shape, axis, axis + 1)
            mask = along if mask is None else mask & along
        return mask

    def _parts(self) -> dict[int, Tensor]:
        """What is watched, by the length of the axis: the sequence, a step, or everything up to the end of a step."""
        found = {len(self.watched): self.watched}
        end = 0
        for length in self.steps:
            end += length
            found.setdefault(length, self.watched[end - length : end])
            found.setdefault(end, self.watched[:end])
        return {size: part for size, part in found.items() if size > 1}

    def _guesses(self, tensor: Tensor) -> Iterator[Tensor]:
        """Masks for axes that may be time: split, a multiple of it, or chunks. They can only show a tensor clean."""
        time, shape = len(self.watched), tensor.shape
        for first, end in _split(shape, time):
            yield _along(self.watched.to(tensor.device), shape, first, end)
        for axis, size in enumerate(shape):
            spread = (*(1,) * axis, size, *(1,) * (len(shape) - axis - 1))
            watched = self.watched.to(tensor.device)
            if size > time and size % time == 0:
                yield watched.repeat(size // time).view(spread)
                yield watched.repeat_interleave(size // time).view(spread)
            elif 1 < size < time and time % size == 0:
                yield watched.view(size, -1).all(-1).view(spread)

    def _is_stretched(self, unequal: Tensor) -> bool:
        """Whether an axis is padded or overlapping time: longer than the input, and partly without differences."""
        time = len(self.watched)
        for axis, size in enumerate(unequal.shape):
            if time < size <= 2 * time and not bool(unequal.movedim(axis, 0).reshape(size, -1).any(1).all()):
                return True
        return False


def _repaired(
    clean: Tensor, other: Tensor, watched: Tensor, maps: Maps | None, mask_of: Callable[[Tensor], Tensor | None]
) -> Tensor:
    if clean.shape != other.shape or maps == ():
        return clean.clone()
    mask = mask_of(clean) if maps is None else watched_at(maps, watched, clean.shape)[1].to(clean.device)
    return clean.clone() if mask is None else torch.where(mask, clean, other)


def _along(flat: Tensor, shape: torch.Size, first: int, end: int) -> Tensor:
    """A mask over adjacent axes of a shape, broadcastable to it."""
    return flat.view(*(1,) * first, *shape[first:end], *(1,) * (len(shape) - end))


def _split(shape: torch.Size, time: int) -> Iterator[tuple[int, int]]:
    """Adjacent axes, each longer than 1, whose product is the time."""
    for first in range(len(shape)):
        for end in range(first + 2, len(shape) + 1):
            if min(shape[first:end]) > 1 and shape[first:end].numel() == time:
                yield first, end


@dataclass(frozen=True, eq=False)
class BatchView:
    """Two batches that differ in some items; `watched` ones, bool [batch], must not."""

    watched: Tensor

    def state(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> State:
        if clean.shape != other.shape:
            return "lost"
        unequal = differs(clean, other)
        if not bool(unequal.any()):
            return "same"
        if maps is not None:
            return _by_position(unequal, maps, self.watched)
        mask = self.mask(clean)
        if mask is None:
            return "lost"
        return "dirty" if bool((unequal & mask).any()) else "clean"

    def repair(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> Tensor:
        return _repaired(clean, other, self.watched, maps, self.mask)

    def mask(self, tensor: Tensor) -> Tensor | None:
        batch, shape = len(self.watched), tensor.shape
        if shape and shape[0] and shape[0] % batch == 0:
            along = self.watched.to(tensor.device).repeat_interleave(shape[0] // batch)
            return along.view(-1, *(1,) * (len(shape) - 1))
        axis = next((n for n, size in enumerate(shape) if size == batch), None)
        if axis is None:
            return None
        return self.watched.to(tensor.device).view(*(1,) * axis, -1, *(1,) * (len(shape) - axis - 1))


@dataclass(frozen=True, eq=False)
class LengthView:
    """Two inputs of different lengths, equal where both have positions. Values are compared up to rounding."""

    watched: Tensor
    """bool [time] of the shorter input."""
    tolerance: float = 1e-4

    def state(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> State:
        pair = shared(clean, other)
        if pair is None:
            return "lost"
        a, b = (part.double() if part.is_floating_point() or not part.is_complex() else part for part in pair)
        gap = (a - b).abs().nan_to_num(0.0, posinf=0.0, neginf=0.0)
        ordinary = a[a.isfinite()].abs().mean() if a.numel() else torch.tensor(0.0)
        unequal = gap > self.tolerance * float(ordinary.nan_to_num(0.0)) + 1e-12
        if not bool(unequal.any()):
            return "same"
        if clean.shape == other.shape and not maps:
            # It has no time axis, and what it holds depends on the length.
            return "dirty"
        if maps:
            return _by_position(unequal, maps, self.watched)
        mask = self._mask(clean, other)
        return "lost" if mask is None else "dirty" if bool((unequal & mask).any()) else "clean"

    def repair(self, clean: Tensor, other: Tensor, maps: Maps | None = None) -> Tensor:
        pair = shared(clean, other)
        if pair is None:
            return other
        repaired = other.clone()
        window = repaired
        for axis, size in enumerate(pair[0].shape):
            window = window.narrow(axis, 0, size)
        mask = watched_at(maps, self.watched, pair[0].shape)[1] if maps else self._mask(clean, other)
        window.copy_(pair[0] if mask is None else torch.where(mask.to(window.device), pair[0], window))
        return repaired

    def _mask(self, clean: Tensor, other: Tensor) -> Tensor | None:
        """Where all axes whose length differs are watched; None where an axis does not hold the positions from 0 on."""
        mask: Tensor | None = None
        for axis, (a, b) in enumerate(zip(clean.shape, other.shape, strict=True)):
            if a == b:
                continue
            size = min(a, b)
            if size != len(self.watched):
                return None
            along = self.watched.to(clean.device).view(*(1,) * axis, size, *(1,) * (clean.ndim - axis - 1))
            mask = along if mask is None else mask & along
        return mask


def shared(clean: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """The part that two tensors of different lengths share, from the front; None where they differ in rank."""
    if clean.ndim != other.ndim:
        return None
    for axis in range(clean.ndim):
        size = min(clean.shape[axis], other.shape[axis])
        clean, other = clean.narrow(axis, 0, size), other.narrow(axis, 0, size)
    return clean, other
