"""Packed documents, the mask of training: recognised, so that its ranges can be made from the ids on the GPU.

>>> from rearview import causal, documents
>>> packing = packing_of(causal() & documents([0, 0, 0, 1]), Frame.of(4, 4))
>>> packing.ahead, packing.mean_keys
(0, 1.0)
>>> packing_of(causal() & documents([0, 1, 0, 1]), Frame.of(4, 4)) is None
True
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.masks import Frame, Mask
from rearview.masks.data import is_readable
from rearview.masks.families import Causal, Window
from rearview.masks.operators import And
from rearview.masks.packing import Documents

# More than any number of keys.
EVERY = 1 << 30


@dataclass(frozen=True, eq=False)
class Packing:
    """`ids` [T] or [batch, T] that never fall; of its document a query hears so much back and ahead, and itself."""

    ids: Tensor
    back: int
    ahead: int
    # How many keys a query hears on average, if all documents are of one length.
    mean_keys: float


def packing_of(mask: Mask, frame: Frame) -> Packing | None:
    """The packing that a mask is in a frame of all positions; None for any other mask."""
    if frame.q_start != 0 or frame.q_len != frame.k_len:
        return None
    found = mask._derive("packing", lambda: _packing_of(mask))
    return found if found is not None and found.ids.shape[-1] == frame.k_len else None


def _packing_of(mask: Mask) -> Packing | None:
    documents, back, ahead = None, EVERY, EVERY
    for part in mask.parts if isinstance(mask, And) else (mask,):
        if isinstance(part, Documents) and documents is None:
            documents = part
        elif isinstance(part, Causal):
            ahead = 0
        elif isinstance(part, Window):
            back, ahead = min(back, part.back), min(ahead, part.ahead)
        else:
            return None
    if documents is None or back < 1 or ahead < 0:
        return None
    ids = documents.ids
    # Reading ids from a GPU would wait for it.
    if ids.device.type != "cpu" or not is_readable(ids) or not documents.is_in_order:
        return None
    low, high = torch.aminmax(ids)
    if int(low) < -EVERY or int(high) > EVERY:
        # The kernel reads them as int32.
        return None
    length = ids.numel() / documents.count_in_order
    return Packing(ids, back, ahead, min(length, ahead + 1 + back, length / 2 if ahead == 0 else length))
