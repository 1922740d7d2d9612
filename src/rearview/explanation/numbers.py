"""Numbers as text, written alike by all front ends.

>>> shown(0.98234), shown(float("-inf")), shown(0.0), shown(0.0001)
('0.982', '-∞', '0', '0.000')
"""

import math

DIGITS = 3


def shown(number: float, digits: int = DIGITS) -> str:
    """A number to `digits` decimals. An exact zero is written 0; one that was rounded keeps its decimals."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return "0" if number == 0 else f"{number:.{digits}f}"


def signed(number: float, digits: int = DIGITS) -> str:
    """A change: as `shown`, with a plus sign before a positive one.

    >>> signed(0.25), signed(-0.25), signed(0.0)
    ('+0.250', '-0.250', '0')
    """
    return f"{'+' if number > 0 else ''}{shown(number, digits)}"
