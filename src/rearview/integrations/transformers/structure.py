"""The mask functions of transformers, read as masks: what they are made of, not what they answer for each pair.

    >>> from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay
    >>> place = Place(q_len=8, k_len=8, q_offset=0, kv_offset=0, batch=1)
    >>> as_mask(and_masks(sliding_window_overlay(4), causal_mask_function), place)
    causal() & window(4)

transformers builds a mask from a few functions (batch, head, query, key) -> bool, and hands over the composition. Each
is a closure: which of them it is, its code tells, and the window or the ids are in its cells. A function counts as
known only if what it answers is what is read from it, on an example, so a version of transformers that means something
else by the same name is not misread. Of an unknown function nothing is guessed: `as_mask` returns None.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, reduce
from operator import and_, or_
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks import Frame, Mask, causal, chunks, documents, full, padding, window
from rearview.masks.families import Causal, Full

MaskFunction = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """Where queries and keys stand in the sequence. A sliding cache has lost the first `kv_offset` keys."""

    q_len: int
    k_len: int
    q_offset: int
    kv_offset: int
    batch: int

    @classmethod
    def asked(
        cls,
        *,
        batch_size: int,
        kv_length: int,
        q_length: int | None = None,
        q_offset: int | Tensor = 0,
        kv_offset: int | Tensor = 0,
        cache_position: Tensor | None = None,
        **others: Any,
    ) -> Place:
        """The place that a mask function of transformers is asked for; the other options say other things.

        Releases before 5.4 give `cache_position`, the position of each query, for `q_length` and `q_offset`. A static
        cache counts in a tensor.

        >>> Place.asked(batch_size=1, kv_length=5, cache_position=torch.tensor([3, 4]))
        Place(q_len=2, k_len=5, q_offset=3, kv_offset=0, batch=1)
        """
        if cache_position is not None:
            q_length, q_offset = len(cache_position), cache_position[0]
        if q_length is None:
            raise BadArgument("q_length", expected="how many queries there are, or cache_position", came="neither")
        return cls(q_length, kv_length, int(q_offset), int(kv_offset), batch_size)

    @property
    def frame(self) -> Frame:
        """Counted from the first key that is there, as masks count."""
        return Frame(self.q_len, self.k_len, self.q_offset - self.kv_offset)

    @property
    def length(self) -> int:
        """Positions from the first key to the last key or query."""
        return max(self.k_len, self.frame.q_end)

    def cut(self, data: Tensor) -> Tensor:
        """Of data [batch, position] the positions of this place, for each item."""
        return data[:, self.kv_offset : self.kv_offset + self.length].expand(self.batch, -1)


def as_mask(function: MaskFunction, place: Place) -> Mask | None:
    """The mask that `function` says at this place, or None where it is not made of known parts."""
    if place.frame.q_start < 0:
        return None
    return _read(function, place, ahead=place.length)


def real_keys(real: Tensor, place: Place) -> Mask:
    """`padding` for a 2-D mask [batch, position]; what it does not reach is not real."""
    missing = place.kv_offset + place.k_len - real.shape[-1]
    filled = torch.nn.functional.pad(real.bool(), (0, max(missing, 0)))
    here = filled[:, place.kv_offset : place.kv_offset + place.k_len].expand(place.batch, -1)
    return full() if bool(here.all()) else padding(here)


def _read(function: MaskFunction, place: Place, *, ahead: int) -> Mask | None:
    code = getattr(function, "__code__", None)
    if code in _joins():
        parts, together = _held(function)["mask_functions"], _joins()[code]
        # A window says nothing of the future; where `causal` stands beside it, nothing needs to be said.
        if together is and_ and any(_reader_of(part) is _causal for part in parts):
            ahead = 0
        read = [_read(part, place, ahead=ahead) for part in parts]
        known = sorted((mask for mask in read if mask is not None), key=lambda mask: not isinstance(mask, Causal))
        if len(known) < len(parts):
            return None
        return joined(*known) if together is and_ else reduce(or_, known)
    reader = _reader_of(function)
    return None if reader is None else reader(_held(function), place, ahead)


def _held(function: Any) -> dict[str, Any]:
    """What a closure holds, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def joined(*masks: Mask) -> Mask:
    """All of them with `&`, without those that hear everything."""
    return reduce(and_, [mask for mask in masks if not isinstance(mask, Full)] or [full()])


def _reader_of(function: MaskFunction) -> Reader | None:
    return _readers().get(getattr(function, "__code__", None))  # type: ignore[arg-type]


# One reader for each function: the names in its closure, where it is used, and how far ahead a window may look.
Reader = Callable[[dict[str, Any], Place, int], "Mask | None"]


def _causal(held: dict[str, Any], place: Place, ahead: int) -> Mask:
    return causal()


def _both_ways(held: dict[str, Any], place: Place, ahead: int) -> Mask:
    return full()


def _window(held: dict[str, Any], place: Place, ahead: int) -> Mask | None:
    size = held["sliding_window"]
    return window(size, ahead=ahead) if isinstance(size, int) and size >= 1 else None


def _window_both_ways(held: dict[str, Any], place: Place, ahead: int) -> Mask | None:
    size = held["sliding_window"]
    return window(size + 1, ahead=size) if isinstance(size, int) and size >= 0 else None


def _chunks(held: dict[str, Any], place: Place, ahead: int) -> Mask:
    size, left = held["chunk_size"], held["left_padding"]
    if place.kv_offset % size == 0 and not bool(left.any()):
        return chunks(size)
    # Chunks begin where the padding ends, for each item on its own: they are documents.
    position = torch.arange(place.length, device=left.device) + place.kv_offset
    return documents(((position - left.view(-1, 1)) // size).expand(place.batch, -1))


def _same_document(held: dict[str, Any], place: Place, ahead: int) -> Mask | None:
    ids = place.cut(held["packed_sequence_mask"])
    return documents(ids) if ids.shape[1] == place.length else None


def _same_block(held: dict[str, Any], place: Place, ahead: int) -> Mask | None:
    # A negative number is no block.
    ids = place.cut(held["block_sequence_ids"])
    return documents(ids) & padding(ids >= 0) if ids.shape[1] == place.length else None


def _real(held: dict[str, Any], place: Place, ahead: int) -> Mask:
    return real_keys(held["padding_mask"], place)


@cache
def _joins() -> dict[CodeType, Callable[[Mask, Mask], Mask]]:
    from transformers import masking_utils as theirs

    part = theirs.causal_mask_function
    return {theirs.and_masks(part).__code__: and_, theirs.or_masks(part).__code__: or_}


@cache
def _readers() -> dict[CodeType, Reader]:
    """Each function of transformers that means what its reader says."""
    from transformers import masking_utils as theirs

    ids, real = torch.tensor([[0, 0, 1, 1, 1, 2, -1, -1]]), torch.tensor([[0, 1, 1, 1, 0, 1, 1, 1]]).bool()
    examples: list[tuple[str, tuple[Any, ...] | None, Reader]] = [
        ("causal_mask_function", None, _causal),
        ("bidirectional_mask_function", None, _both_ways),
        ("sliding_window_overlay", (3,), _window),
        ("sliding_window_bidirectional_overlay", (2,), _window_both_ways),
        ("chunked_overlay", (3, torch.tensor([1])), _chunks),
        ("packed_sequence_mask_function", (ids,), _same_document),
        ("blockwise_overlay", (ids,), _same_block),
        ("padding_mask_function", (real,), _real),
    ]
    known: dict[CodeType, Reader] = {}
    for name, arguments, reader in examples:
        made = getattr(theirs, name, None)
        if made is not None:
            function = made if arguments is None else made(*arguments)
            if _means_the_same(function, reader):
                known[function.__code__] = reader
    return known


def _means_the_same(function: Any, reader: Reader) -> bool:
    place = Place(q_len=5, k_len=7, q_offset=3, kv_offset=1, batch=1)
    try:
        mask = reader(_held(function), place, place.length)
    except KeyError:
        # Other names in the closure: another function.
        return False
    if mask is None:
        return False
    query, key = torch.arange(5).view(1, 1, -1, 1) + 3, torch.arange(7).view(1, 1, 1, -1) + 1
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    return torch.equal(function(zero, zero, query, key).expand(1, 1, 5, 7), mask.visible_in(place.frame, zero.device))
