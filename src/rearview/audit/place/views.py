"""How a tensor inside a model looks from outside: does it differ only where it may, or where it must not?

>>> import torch
>>> from rearview.audit.place.views import TimeView
>>> view = TimeView(watched=torch.tensor([True, True, True, False]))
>>> clean = torch.zeros(1, 4, 8)
>>> other = clean.clone()
>>> other[0, 3] = 1
>>> view.state(clean, other), view.state(clean, other.flip(1)), view.state(clean.sum(1), other.sum(1))
('clean', 'dirty', 'lost')

Which axis is the time is not written on a tensor. Every axis as long as the input counts as one, and a difference is
forbidden only where all of them are watched: scores [query, key] may differ wherever the query or the key may. Axes
flattened with the batch are recognised. Where the time may have been split, or cut into chunks, a tensor that is clean
when read so is *guessed* to be. Where no axis fits, the time is lost: it differs, and nobody can say for whom.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

State = Literal["same", "clean", "guessed", "stretched", "lost", "dirty"]


class View(Protocol):
    def state(self, clean: Tensor, other: Tensor) -> State:
        """What became of the tensor in the other run."""
        ...

    def repair(self, clean: Tensor, other: Tensor) -> Tensor:
        """The other tensor with its clean values wherever it must not differ."""
        ...


def differs(clean: Tensor, other: Tensor) -> Tensor:
    """Elementwise; NaN is equal to NaN."""
    unequal = clean != other
    if clean.is_floating_point() or clean.is_complex():
        unequal &= ~(clean.isnan() & other.isnan())
    return unequal


@dataclass(frozen=True, eq=False)
class TimeView:
    """Two inputs of one length that differ at some positions; `watched` ones must not hear of it."""

    watched: Tensor
    batch: int = 1
    steps: tuple[int, ...] = ()
    """The lengths of the steps, where the model runs with a cache: queries are then those of one step."""

    def state(self, clean: Tensor, other: Tensor) -> State:
        if clean.shape != other.shape:
            return "lost"
        unequal = differs(clean, other)
        if not bool(unequal.any()):
            return "same"
        mask = self.mask(clean)
        if mask is not None:
            return "dirty" if bool((unequal & mask).any()) else "clean"
        if any(not bool((unequal & guess).any()) for guess in self._guesses(clean)):
            return "guessed"
        return "stretched" if self._is_stretched(unequal) else "lost"

    def repair(self, clean: Tensor, other: Tensor) -> Tensor:
        mask = self.mask(clean) if clean.shape == other.shape else None
        return clean.clone() if mask is None else torch.where(mask, clean, other)

    def mask(self, tensor: Tensor) -> Tensor | None:
        """bool, broadcastable to the tensor: where all time axes are watched. None without a time axis."""
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
        """What is watched, by the length of the axis: all of it, a step, or all up to the end of a step."""
        found = {len(self.watched): self.watched}
        end = 0
        for length in self.steps:
            end += length
            found.setdefault(length, self.watched[end - length : end])
            found.setdefault(end, self.watched[:end])
        return {size: part for size, part in found.items() if size > 1}

    def _guesses(self, tensor: Tensor) -> Iterator[Tensor]:
        """Masks for axes that may be time: split, a multiple of it, or chunks. Good for an acquittal only."""
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
        """A padded or overlapping time axis: longer than the input, and some of it is untouched."""
        time = len(self.watched)
        for axis, size in enumerate(unequal.shape):
            if time < size <= 2 * time and not bool(unequal.movedim(axis, 0).flatten(1).any(1).all()):
                return True
        return False


def _along(flat: Tensor, shape: torch.Size, first: int, end: int) -> Tensor:
    """A mask over some neighbouring axes of a shape, broadcastable to it."""
    return flat.view(*(1,) * first, *shape[first:end], *(1,) * (len(shape) - end))


def _split(shape: torch.Size, time: int) -> Iterator[tuple[int, int]]:
    """Neighbouring axes, each longer than 1, that multiply to the time."""
    for first in range(len(shape)):
        for end in range(first + 2, len(shape) + 1):
            if min(shape[first:end]) > 1 and shape[first:end].numel() == time:
                yield first, end


@dataclass(frozen=True, eq=False)
class BatchView:
    """Two batches that differ in some items; `watched` ones, bool [batch], must not hear of it."""

    watched: Tensor

    def state(self, clean: Tensor, other: Tensor) -> State:
        if clean.shape != other.shape:
            return "lost"
        unequal = differs(clean, other)
        if not bool(unequal.any()):
            return "same"
        mask = self.mask(clean)
        if mask is None:
            return "lost"
        return "dirty" if bool((unequal & mask).any()) else "clean"

    def repair(self, clean: Tensor, other: Tensor) -> Tensor:
        mask = self.mask(clean) if clean.shape == other.shape else None
        return clean.clone() if mask is None else torch.where(mask, clean, other)

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
    """Two inputs of different lengths, alike as far as both go. Shapes differ, so values are compared loosely."""

    watched: Tensor
    """bool [time] of the shorter input."""
    tolerance: float = 1e-4

    def state(self, clean: Tensor, other: Tensor) -> State:
        pair = shared(clean, other)
        if pair is None:
            return "lost"
        a, b = (part.double() if part.is_floating_point() or not part.is_complex() else part for part in pair)
        gap = (a - b).abs().nan_to_num(0.0, posinf=0.0, neginf=0.0)
        ordinary = a[a.isfinite()].abs().mean() if a.numel() else torch.tensor(0.0)
        unequal = gap > self.tolerance * float(ordinary.nan_to_num(0.0)) + 1e-12
        if not bool(unequal.any()):
            return "same"
        mask = TimeView(self.watched).mask(pair[0])
        if mask is None:
            return "lost" if clean.shape != other.shape else "dirty"
        return "dirty" if bool((unequal & mask).any()) else "clean"

    def repair(self, clean: Tensor, other: Tensor) -> Tensor:
        pair = shared(clean, other)
        if pair is None:
            return other
        repaired = other.clone()
        window = repaired
        for axis, size in enumerate(pair[0].shape):
            window = window.narrow(axis, 0, size)
        mask = TimeView(self.watched).mask(pair[0])
        window.copy_(pair[0] if mask is None else torch.where(mask, pair[0], window))
        return repaired


def shared(clean: Tensor, other: Tensor) -> tuple[Tensor, Tensor] | None:
    """The part that two tensors of different lengths share, from the front; None for different ranks."""
    if clean.ndim != other.ndim:
        return None
    for axis in range(clean.ndim):
        size = min(clean.shape[axis], other.shape[axis])
        clean, other = clean.narrow(axis, 0, size), other.narrow(axis, 0, size)
    return clean, other
