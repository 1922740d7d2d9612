"""A context that is full: how far the tokens have slid out of it.

>>> [window_start(count, context=4) for count in range(1, 10)]
[0, 0, 0, 0, 2, 2, 4, 4, 6]

When one more token would not fit, the oldest half of the context is dropped at once, and what remains is read again
from position 0. Dropping one token a step would cost a whole reading each: every position moves. The rule knows only
how many tokens there are, so it is the same with a cache and without, alone and in a batch.
"""

from __future__ import annotations

from typing import Literal

from rearview.errors import BadArgument

WhenFull = Literal["slide", "stop"]


def window_start(count: int, *, context: int) -> int:
    """The first of `count` tokens that a model of this context is still given."""
    hop = max(1, context // 2)
    return max(0, -(-(count - context) // hop)) * hop


def check_when_full(when_full: object) -> None:
    if when_full not in ("slide", "stop"):
        raise BadArgument("when_full", expected='"slide" or "stop"', came=repr(when_full))
