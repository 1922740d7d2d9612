"""The masks that transformers made last: they tell an attention where its queries and keys stand.

    >>> import torch
    >>> remember(None, {"batch_size": 1, "q_length": 1, "kv_length": 5, "q_offset": 4})
    >>> place_of(torch.nn.Module(), None, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 5, 8))[0]
    Place(q_len=1, k_len=5, q_offset=4, kv_offset=0, batch=1)
    >>> forget()

An attention gets its mask as a tensor, or None where none is needed. What made it knew more: how much of a static cache
is filled, how many keys a sliding one has lost, and the function behind the tensor.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rearview.integrations.transformers.structure import Place, as_mask, joined, real_keys
from rearview.integrations.transformers.travelling import TravellingMask

# Masks of one forward pass: one a kind of layer, and a few to spare.
FEW = 16


@dataclass(frozen=True, eq=False)
class _Made:
    """A mask that was made for the model: where it stands, the mask itself (None: none was needed), its structure.

    `is_causal` False is the mask of an encoder, or of what a decoder hears of one.
    """

    place: Place
    mask: Callable[[], Any] | None
    structured: TravellingMask | None
    is_causal: bool

    def is_the_same(self, mask: Any) -> bool:
        return mask is not None and self.mask is not None and self.mask() is mask

    def fits(self, mask: Any, q_len: int, k_len: int) -> bool:
        """Could it be a copy? Models crop their masks, and move them."""
        return (self.place.q_len, self.place.k_len) == (q_len, k_len) and (mask is None) == (self.mask is None)


# By thread, the latest first: a model runs in one, and another model may run in another.
_made: defaultdict[int, deque[_Made]] = defaultdict(lambda: deque(maxlen=FEW))


def forget() -> None:
    """Masks of earlier runs say nothing of the next."""
    _made.clear()


def remember(made: Any, options: dict[str, Any]) -> None:
    """Take in what a mask function returned, and what it was asked."""
    place = Place.asked(**options)
    structured = made if isinstance(made, TravellingMask) else None
    if made is not None and structured is None:
        structured = _structured(place, options)
    is_causal = "allow_is_bidirectional_skip" not in options
    kept = None if made is None else weakref.ref(made)
    _made[threading.get_ident()].appendleft(_Made(place, kept, structured, is_causal))


def _structured(place: Place, options: dict[str, Any]) -> TravellingMask | None:
    """The same mask with ranges instead of a tensor of query x key; None where its function is not known."""
    function, real = options.get("mask_function"), options.get("attention_mask")
    mask = None if function is None else as_mask(function, place)
    if mask is None:
        return None
    if real is not None:
        mask = joined(mask, real_keys(real, place))
    return TravellingMask.of(mask, place.frame, batch=place.batch, device=options.get("device", "cpu"))


def place_of(module: nn.Module, mask: Any, query: Tensor, key: Tensor) -> tuple[Place | None, TravellingMask | None]:
    """Where this attention stands, and its mask with ranges; None for what is not known."""
    latest = _made[threading.get_ident()]
    for made in latest:
        if made.is_the_same(mask):
            return made.place, made.structured
    fitting = [made for made in latest if made.fits(mask, query.shape[2], key.shape[2])]
    # The latest of its own kind: a mask for what is heard of an encoder may have the same size.
    fitting.sort(key=lambda made: made.is_causal != getattr(module, "is_causal", True))
    return (fitting[0].place, None) if fitting else (None, None)
