"""One query over a cache: what it hears as one range, worked out with plain numbers.

    >>> from rearview import causal, window
    >>> from rearview.masks import Frame
    >>> heard_by_one(causal() & window(3), Frame.of(1, 8))
    (5, 8)

Every step has a new length, so tensors of ranges would be made anew for each, and take longer than the step. What is
heard is cut out of the keys instead, and needs no mask any more.
"""

from __future__ import annotations

from rearview.masks import Frame, Mask
from rearview.masks.combine import And
from rearview.masks.families import Causal, Chunks, Full, Prefix, Window


def heard_by_one(mask: Mask, frame: Frame) -> tuple[int, int] | None:
    """The keys [start, end) that the only query of the frame hears; None where that is no single range, or unknown."""
    start, end = 0, frame.k_len
    for part in mask.parts if isinstance(mask, And) else (mask,):
        edges = _edges(part, frame.q_start, frame.k_len)
        if edges is None:
            return None
        start, end = max(start, edges[0]), min(end, edges[1])
    return (start, end) if start < end else None


def _edges(mask: Mask, position: int, k_len: int) -> tuple[int, int] | None:
    if isinstance(mask, Full):
        return 0, k_len
    if isinstance(mask, Causal):
        return 0, position + 1
    if isinstance(mask, Window):
        return position - mask.back + 1, position + mask.ahead + 1
    if isinstance(mask, Chunks):
        first = position // mask.size * mask.size
        return first, first + mask.size
    if isinstance(mask, Prefix) and isinstance(mask.lengths, int):
        return 0, mask.lengths
    return None
