"""The batch size of an exported mask: its own, or the caller's.

>>> from rearview import causal, padding
>>> batch_of(causal(), 4), batch_of(padding([1, 2]), None)
(4, 2)
"""

from rearview.errors import BadArgument
from rearview.masks.exchange.checked import checked
from rearview.masks.frame import whole_number
from rearview.masks.mask import Mask


def batch_of(mask: Mask, batch: int | None) -> int:
    """The batch size, which must be the mask's own where it has one.

    >>> from rearview import causal
    >>> batch_of(causal(), None)
    1
    """
    mask = checked(mask)
    if batch is None:
        return mask.batch or 1
    size = whole_number(batch, "batch", at_least=1)
    if mask.batch not in (None, size):
        raise BadArgument("batch", expected=f"{mask.batch}, the batch size of the mask", got=size)
    return size
