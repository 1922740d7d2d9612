"""Numbers as text, written alike by all front ends.

>>> shown(0.98234), shown(float("-inf")), shown(0.0), shown(-0.0001)
('0.982', '-∞', '0', '0.000')
"""

import math

from torch import Tensor

from rearview.errors import BadArgument

DIGITS = 3
# The most decimals that a float64 can have any use for.
MOST_DIGITS = 17


def checked_decimals(decimals: int) -> int:
    if isinstance(decimals, bool) or not isinstance(decimals, int) or not 1 <= decimals <= MOST_DIGITS:
        raise BadArgument("decimals", expected=f"an integer from 1 to {MOST_DIGITS}", got=repr(decimals))
    return decimals


def shown(number: float, digits: int = DIGITS) -> str:
    """A number to `digits` decimals. An exact zero is written 0; what rounds to zero has decimals and no sign."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if number == 0:
        return "0"
    text = f"{number:.{digits}f}"
    return text.removeprefix("-") if not text.strip("-0.") else text


def signed(number: float, digits: int = DIGITS) -> str:
    """A change: as `shown`, with a plus sign before a positive one.

    >>> signed(0.25), signed(-0.25), signed(0.0), signed(0.0001)
    ('+0.250', '-0.250', '0', '0.000')
    """
    text = shown(number, digits)
    return f"+{text}" if number > 0 and text.strip("0.") else text


def digits_for(matrix: Tensor, digits: int = DIGITS) -> int:
    """The decimals of a matrix: none where every finite number is whole.

    >>> import torch
    >>> digits_for(torch.tensor([[1.0, -2.0]])), digits_for(torch.tensor([[1.0, 0.5]]))
    (0, 3)
    """
    finite = matrix[matrix.isfinite()]
    return 0 if bool((finite == finite.round()).all()) else digits
