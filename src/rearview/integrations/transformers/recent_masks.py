"""The latest masks that transformers made, which give the positions of the queries and keys of an attention call.

    >>> import torch
    >>> remember(None, {"batch_size": 1, "q_length": 1, "kv_length": 5, "q_offset": 4})
    >>> placement_of(torch.nn.Module(), None, torch.zeros(1, 2, 1, 8), torch.zeros(1, 2, 5, 8))[0]
    MaskPlacement(q_len=1, k_len=5, q_offset=4, kv_offset=0, batch=1, rows=None)
    >>> forget()

An attention function receives its mask as a tensor, or None where no mask is needed. The function that made the mask
knew more: how far a static cache is filled, how many keys a sliding cache has dropped, and the rule of the mask.
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from rearview.integrations.transformers.mask_functions import MaskPlacement, as_mask, joined, real_keys
from rearview.integrations.transformers.mask_tensor import MaskTensor

# The number of masks to remember: a forward pass makes one per kind of layer.
FEW = 16


@dataclass(frozen=True, eq=False)
class _RecentMask:
    """A mask that was made for a model.

    Args:
        placement: the positions of its queries and keys.
        mask: a weak reference to what the model got; None where no mask was needed.
        structured: the same mask with ranges, where they are known.
        is_causal: False for the mask of an encoder, or of cross attention.
    """

    placement: MaskPlacement
    mask: Callable[[], Any] | None
    structured: MaskTensor | None
    is_causal: bool

    def is_the_same(self, mask: Any) -> bool:
        return mask is not None and self.mask is not None and self.mask() is mask

    def fits(self, mask: Any, q_len: int, k_len: int) -> bool:
        """Whether `mask` could be a copy of it: models crop their masks, and move them."""
        sizes = (self.placement.q_len, self.placement.k_len)
        return sizes == (q_len, k_len) and (mask is None) == (self.mask is None)


# Per thread, the latest first: a model runs in one thread, and another model may run in another thread.
_recent: defaultdict[int, deque[_RecentMask]] = defaultdict(lambda: deque(maxlen=FEW))


def forget() -> None:
    """Forget all masks: those of earlier runs say nothing about the next."""
    _recent.clear()


def remember(mask: Any, options: dict[str, Any]) -> None:
    """Remember a mask that a mask function returned, and the options that it was called with."""
    placement = MaskPlacement.asked(**options)
    structured = mask if isinstance(mask, MaskTensor) else None
    if mask is not None and structured is None:
        structured = _structured(placement, options)
    is_causal = "allow_is_bidirectional_skip" not in options
    reference = None if mask is None else weakref.ref(mask)
    _recent[threading.get_ident()].appendleft(_RecentMask(placement, reference, structured, is_causal))


def _structured(placement: MaskPlacement, options: dict[str, Any]) -> MaskTensor | None:
    """The same mask with ranges instead of a tensor of query x key; None where its function is not known."""
    function, real = options.get("mask_function"), options.get("attention_mask")
    mask = None if function is None else as_mask(function, placement)
    if mask is None:
        return None
    if real is not None:
        mask = joined(mask, real_keys(real, placement))
    return MaskTensor.of(mask, placement.frame, batch=placement.batch, device=options.get("device", "cpu"))


def placement_of(
    module: nn.Module, mask: Any, query: Tensor, key: Tensor
) -> tuple[MaskPlacement | None, MaskTensor | None]:
    """The positions of this attention call, and its mask with ranges; None for what is not known."""
    latest = _recent[threading.get_ident()]
    for recent in latest:
        if recent.is_the_same(mask):
            return recent.placement, recent.structured
    fitting = [recent for recent in latest if recent.fits(mask, query.shape[2], key.shape[2])]
    # The latest of the same kind comes first: a mask for cross attention may have the same size.
    fitting.sort(key=lambda recent: recent.is_causal != getattr(module, "is_causal", True))
    return (fitting[0].placement, None) if fitting else (None, None)
