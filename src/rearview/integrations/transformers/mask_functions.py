"""The mask functions of transformers, read as masks from their parts instead of evaluated for every pair.

    >>> from transformers.masking_utils import and_masks, causal_mask_function, sliding_window_overlay
    >>> place = MaskPlacement(q_len=8, k_len=8, q_offset=0, kv_offset=0, batch=1)
    >>> as_mask(and_masks(sliding_window_overlay(4), causal_mask_function), place)
    causal() & window(4)

transformers builds a mask from a few functions (batch, head, query, key) -> bool and passes their composition. Each
function is a closure: its code object identifies it, and its cells hold the window or the ids. A function counts as
known only if its answers on an example agree with the mask that is read from it, so a release of transformers that
changes the meaning of a name is not misread. For an unknown function `as_mask` returns None and guesses nothing.
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

MaskFunction = Callable[..., Any]


@dataclass(frozen=True)
class MaskPlacement:
    """The positions of queries and keys in the sequence. A sliding cache has dropped the first `kv_offset` keys."""

    q_len: int
    k_len: int
    q_offset: int
    kv_offset: int
    batch: int
    # Reads the tensors of mask functions that hold this rank's rows only, where a sequence is spread over ranks.
    rows: Callable[[str, Tensor], Mask] | None = None

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
    ) -> MaskPlacement:
        """The placement that transformers requests a mask for; `others` are options that do not concern it.

        Releases before 5.4 pass `cache_position`, the position of each query, instead of `q_length` and `q_offset`. A
        static cache passes offsets as tensors.

        >>> MaskPlacement.asked(batch_size=1, kv_length=5, cache_position=torch.tensor([3, 4]))
        MaskPlacement(q_len=2, k_len=5, q_offset=3, kv_offset=0, batch=1, rows=None)
        """
        if cache_position is not None:
            q_length, q_offset = len(cache_position), cache_position[0]
        if q_length is None:
            raise BadArgument("q_length", expected="the number of queries, or cache_position", got="neither")
        return cls(q_length, kv_length, int(q_offset), int(kv_offset), batch_size)

    @property
    def frame(self) -> Frame:
        """The frame, with positions counted from the first key that the cache holds."""
        return Frame(self.q_len, self.k_len, self.q_offset - self.kv_offset)

    @property
    def length(self) -> int:
        """The number of positions from the first key to the last key or query."""
        return max(self.k_len, self.frame.q_end)

    def cut(self, data: Tensor) -> Tensor:
        """The part of `data` [batch, position] that belongs to these positions, for each item."""
        return data[:, self.kv_offset : self.kv_offset + self.length].expand(self.batch, -1)


def as_mask(function: MaskFunction, place: MaskPlacement) -> Mask | None:
    """The mask that `function` means for this placement, or None if it is not made of known parts."""
    if place.frame.q_start < 0:
        return None
    return _read(function, place, ahead=place.length)


def real_keys(real: Tensor, place: MaskPlacement) -> Mask:
    """`padding` for a 2-D mask [batch, position]; positions beyond its end are padding."""
    missing = place.kv_offset + place.k_len - real.shape[-1]
    filled = torch.nn.functional.pad(real.bool(), (0, max(missing, 0)))
    here = filled[:, place.kv_offset : place.kv_offset + place.k_len].expand(place.batch, -1)
    return full() if bool(here.all()) else padding(here)


def _read(function: MaskFunction, place: MaskPlacement, *, ahead: int) -> Mask | None:
    code = getattr(function, "__code__", None)
    if code in _joins():
        parts, together = _held(function)["mask_functions"], _joins()[code]
        # A window of transformers does not restrict the future; next to `causal` it does not have to.
        if together is and_ and any(_reader_of(part) is _causal for part in parts):
            ahead = 0
        read = [_read(part, place, ahead=ahead) for part in parts]
        known = sorted((mask for mask in read if mask is not None), key=lambda mask: not mask.is_causal)
        if len(known) < len(parts):
            return None
        return joined(*known) if together is and_ else reduce(or_, known)
    reader = _reader_of(function)
    return None if reader is None else reader(_held(function), place, ahead)


def _held(function: Any) -> dict[str, Any]:
    """The variables of a closure, by name."""
    cells = function.__closure__ or ()
    return dict(zip(function.__code__.co_freevars, (cell.cell_contents for cell in cells), strict=True))


def joined(*masks: Mask) -> Mask:
    """The masks joined with `&`, without those that are full."""
    return reduce(and_, [mask for mask in masks if not mask.is_full] or [full()])


def _reader_of(function: MaskFunction) -> Reader | None:
    return _readers().get(getattr(function, "__code__", None))  # type: ignore[arg-type]


# A reader per function. It takes the variables of the closure, the placement, and how far ahead a window may hear.
Reader = Callable[[dict[str, Any], MaskPlacement, int], "Mask | None"]


def _causal(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask:
    return causal()


def _both_ways(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask:
    return full()


def _window(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask | None:
    size = held["sliding_window"]
    return window(size, ahead=ahead) if isinstance(size, int) and size >= 1 else None


def _window_both_ways(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask | None:
    size = held["sliding_window"]
    return window(size + 1, ahead=size) if isinstance(size, int) and size >= 0 else None


def _chunks(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask:
    size, left = held["chunk_size"], held["left_padding"]
    if place.kv_offset % size == 0 and not bool(left.any()):
        return chunks(size)
    # Chunks begin where the padding of each item ends, so they are documents.
    position = torch.arange(place.length, device=left.device) + place.kv_offset
    return documents(((position - left.view(-1, 1)) // size).expand(place.batch, -1))


def _same_document(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask | None:
    if place.rows is not None:
        return place.rows("documents", held["packed_sequence_mask"])
    ids = place.cut(held["packed_sequence_mask"])
    return documents(ids) if ids.shape[1] == place.length else None


def _same_block(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask | None:
    if place.rows is not None:
        return place.rows("blocks", held["block_sequence_ids"])
    # A negative id means that the position belongs to no block.
    ids = place.cut(held["block_sequence_ids"])
    return documents(ids) & padding(ids >= 0) if ids.shape[1] == place.length else None


def _real(held: dict[str, Any], place: MaskPlacement, ahead: int) -> Mask:
    if place.rows is not None:
        return place.rows("padding", held["padding_mask"])
    return real_keys(held["padding_mask"], place)


@cache
def _joins() -> dict[CodeType, Callable[[Mask, Mask], Mask]]:
    from transformers import masking_utils as theirs

    part = theirs.causal_mask_function
    return {theirs.and_masks(part).__code__: and_, theirs.or_masks(part).__code__: or_}


@cache
def _readers() -> dict[CodeType, Reader]:
    """The functions of transformers whose meaning agrees with their reader, by code object."""
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
        factory = getattr(theirs, name, None)
        if factory is not None:
            function = factory if arguments is None else factory(*arguments)
            if _means_the_same(function, reader):
                known[function.__code__] = reader
    return known


def _means_the_same(function: Any, reader: Reader) -> bool:
    place = MaskPlacement(q_len=5, k_len=7, q_offset=3, kv_offset=1, batch=1)
    try:
        mask = reader(_held(function), place, place.length)
    except KeyError:
        # Other variables in the closure mean that it is another function.
        return False
    if mask is None:
        return False
    query, key = torch.arange(5).view(1, 1, -1, 1) + 3, torch.arange(7).view(1, 1, 1, -1) + 1
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    return torch.equal(function(zero, zero, query, key).expand(1, 1, 5, 7), mask.visible_in(place.frame, zero.device))
