"""Rows of ranges to and from masks, for formats that list rows and have no positions.

>>> from rearview import causal
>>> rows_as_mask(causal().spans(2, 3))
ranges([3, 0, 0], [3, 2, 3])
"""

from __future__ import annotations

import torch

from rearview.errors import BadArgument
from rearview.masks.exchange.checked import checked
from rearview.masks.explicit import ranges
from rearview.masks.frame import Frame
from rearview.masks.mask import Mask
from rearview.masks.spans import Spans

CPU = torch.device("cpu")


def ranged(mask: Mask, frame: Frame) -> Spans:
    """The ranges of any mask in a frame, on the CPU; those of a mask without a range form are read off its dense form.

    >>> from rearview import dilated
    >>> ranged(dilated(2), Frame.of(1, 3)).rows()
    [[(0, 1), (2, 3)]]
    """
    mask = checked(mask)
    return mask.spans_in(frame, CPU) if mask.has_ranges else Spans.from_bool(mask.visible_in(frame, CPU))


def rows_as_mask(spans: Spans) -> Mask:
    """The mask with these rows, which are at the last positions of the keys."""
    before = spans.k_len - spans.q_len
    if before < 0:
        raise BadArgument("q_len", expected=f"at most {spans.k_len}, the number of keys", got=spans.q_len)
    shape = (-1, -1, spans.q_len, -1)
    edges = (edge.expand(shape) for edge in (spans.starts, spans.ends))
    return ranges(*(torch.nn.functional.pad(edge, (0, 0, before, 0), value=spans.k_len) for edge in edges))
