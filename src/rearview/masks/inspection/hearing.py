"""Counts of what each query hears: all keys, later keys, itself. Drawings and warnings read them.

>>> from rearview import window
>>> from rearview.masks import Frame
>>> from rearview.masks.inspection.hearing import hearing_of
>>> hearing_of(window(2, ahead=1), Frame.of(3)).keys[0, 0].tolist()
[2, 3, 2]
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import Unsupported
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans

# A mask with no range form is evaluated in strips of about this many pairs, so memory stays flat.
PAIRS_PER_STRIP = 2**22

# Beyond this many pairs a drawing of such a mask would take minutes; 16k x 16k takes seconds.
MOST_PAIRS_DRAWN = 2**28


@dataclass(frozen=True, eq=False)
class Hearing:
    """int64 and bool tensors [batch, head, query]."""

    keys: Tensor
    """The number of keys that the query hears."""
    ahead: Tensor
    """The number of those after its own position."""
    first_ahead: Tensor
    """The position of the first key after its own that it hears, or k_len."""
    itself: Tensor
    """Whether it hears its own position."""


def hearing_of(mask: Mask, frame: Frame, device: torch.device | str = "cpu") -> Hearing:
    """The counts of a mask in a frame: from its ranges in O(T) where it has them, otherwise strip by strip."""
    device = torch.device(device)
    if mask.has_ranges:
        return _from_spans(mask.spans_in(frame, device), frame)
    strips = [_from_strip(visible, rows, frame) for rows, visible in strips_of(mask, frame, device)]
    return Hearing(*(torch.cat(parts, dim=-1) for parts in zip(*strips, strict=True)))


def strips_of(mask: Mask, frame: Frame, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of the dense form, a few at a time: query indices, and bool [batch, head, rows, k_len]."""
    pairs_per_row = max(1, (mask.batch or 1) * (mask.heads or 1) * frame.k_len)
    height = max(1, PAIRS_PER_STRIP // pairs_per_row)
    for first in range(0, max(1, frame.q_len), height):
        rows = torch.arange(first, min(first + height, frame.q_len), device=device)
        yield rows, mask.visible_in(frame, device, rows)


def refuse_endless_drawing(mask: Mask, frame: Frame) -> None:
    """Raise for a mask with no range form over so many pairs that drawing it would take minutes."""
    if not mask.has_ranges and frame.q_len * frame.k_len > MOST_PAIRS_DRAWN:
        raise Unsupported(
            f"a drawing of {frame.q_len:,} queries x {frame.k_len:,} keys",
            [f"{mask!r} has no range form, so every pair would have to be evaluated"],
            advice="Draw fewer tokens, or a part of them: fewer keys, and queries from q_start on.",
        )


def _from_spans(spans: Spans, frame: Frame) -> Hearing:
    position = frame.query_positions(spans.starts.device)
    ahead = (spans.ends - torch.maximum(spans.starts, position + 1)).clamp(min=0).sum(-1)
    itself = ((spans.starts <= position) & (position < spans.ends)).any(-1)
    return Hearing(spans.keys_heard, ahead, spans.first_future(frame.q_start), itself)


def _from_strip(visible: Tensor, rows: Tensor, frame: Frame) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    key = torch.arange(frame.k_len, device=visible.device)
    position = (rows + frame.q_start).unsqueeze(-1)
    future = visible & (key > position)
    # The padding column makes argmax find k_len where nothing is ahead, and works for k_len = 0.
    first = torch.nn.functional.pad(future, (0, 1), value=True).int().argmax(-1)
    return visible.sum(-1), future.sum(-1), first, (visible & (key == position)).any(-1)
