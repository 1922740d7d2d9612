"""The mask of an export function: an error where it is something else.

>>> from rearview import causal
>>> checked(causal())
causal()
"""

from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.mask import Mask


def checked(mask: object) -> Mask:
    """The mask itself, if it is one."""
    if not isinstance(mask, Mask):
        advice = "Convert a tensor with dense(tensor) or from_bool(tensor, true_means=...)."
        expected, got = "a mask, such as causal()", type(mask).__name__
        raise BadArgument("mask", expected=expected, got=got, advice=advice if isinstance(mask, Tensor) else "")
    return mask
