"""How a number is written, in every front end the same.

>>> shown(0.98234), shown(float("-inf")), shown(0.0), shown(0.0001)
('0.982', '-∞', '0', '0.000')
"""

import math

DIGITS = 3


def shown(number: float, digits: int = DIGITS) -> str:
    """A number to `digits` decimals. A zero that is exact is written 0: one that was rounded has its decimals."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    return "0" if number == 0 else f"{number:.{digits}f}"


def signed(number: float, digits: int = DIGITS) -> str:
    """A change: as `shown`, and a rise has its sign.

    >>> signed(0.25), signed(-0.25), signed(0.0)
    ('+0.250', '-0.250', '0')
    """
    return f"{'+' if number > 0 else ''}{shown(number, digits)}"
