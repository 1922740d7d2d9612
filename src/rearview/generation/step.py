"""What a generation yields at each step, and why a sequence came to its end.

>>> step = Step(tokens=(5, None), reasons=("length", "end token"), slid=(False, False))
>>> step.tokens[0], step.reasons[0]
(5, 'length')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reason = Literal["end token", "stop string", "length", "context full", "stopped"]


@dataclass(frozen=True)
class Step:
    """One step of every sequence.

    Args:
        tokens: the new token of each sequence, None for one that had come to its end before.
        reasons: why each has come to its end, None while it goes on.
        slid: did its oldest tokens slide out of the context before this token?
    """

    tokens: tuple[int | None, ...]
    reasons: tuple[Reason | None, ...]
    slid: tuple[bool, ...]

    @property
    def token(self) -> int:
        """The new token, where there is one sequence.

        >>> Step((5,), (None,), (False,)).token
        5
        """
        (token,) = self.tokens
        assert token is not None, "a step has at least one new token"
        return token
