"""One batch item and one head of a mask, as a mask. A drawing shows one of them.

>>> from rearview import padding
>>> from rearview.masks.item import item_of
>>> item_of(padding([1, 2]), batch=0, head=0).to_bool(2).int().tolist()
[[1, 0], [1, 0]]
"""

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask, family
from rearview.masks.operators import Wrapped
from rearview.masks.spans import Spans


@family()
class Item(Wrapped):
    item: int
    head: int

    @property
    def batch(self) -> int | None:
        return None

    @property
    def heads(self) -> int | None:
        return None

    def visible(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        batch, head = torch.full_like(batch, self.item), torch.full_like(head, self.head)
        return self.part.visible(batch, head, query, key)

    def _spans(self, frame: Frame, device: torch.device) -> Spans:
        spans = self.part.spans_in(frame, device)
        b, h = min(self.item, spans.batch - 1), min(self.head, spans.heads - 1)
        starts, ends = (edge[b : b + 1, h : h + 1] for edge in (spans.starts, spans.ends))
        # Canonical again: another item may need more ranges than this one.
        return Spans.of(starts, ends, q_len=spans.q_len, k_len=spans.k_len)

    def __repr__(self) -> str:
        return repr(self.part)


def item_of(mask: Mask, *, batch: int, head: int) -> Mask:
    """The mask of one batch item and head; the mask itself when it is the same for all of them.

    >>> from rearview import causal
    >>> item_of(causal(), batch=0, head=0)
    causal()
    """
    batch = _index(batch, mask.batch, "batch", f"{mask!r} is the same for every batch item")
    head = _index(head, mask.heads, "head", f"{mask!r} is the same for every head")
    return mask if mask.batch is None and mask.heads is None else Item(mask, batch, head)


def _index(value: int, size: int | None, argument: str, same: str) -> int:
    index = whole_number(value, argument, at_least=0)
    if index >= (size or 1):
        expected = f"0, as {same}" if size is None else f"an index from 0 to {size - 1}"
        raise BadArgument(argument, expected=expected, got=index)
    return index
