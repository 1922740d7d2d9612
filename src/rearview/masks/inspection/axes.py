"""The two axes of a drawing of attention: the frame, and the tokens at its queries and keys.

>>> from rearview.masks.inspection.axes import Axes
>>> Axes.of("much", "I love sushi very much").frame
Frame(q_len=1, k_len=5, q_start=4)
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rearview.drawing.cells import counted, drawn
from rearview.errors import BadArgument
from rearview.masks.frame import Frame, whole_number

Tokens = Sequence[str] | str | int


@dataclass(frozen=True)
class Axes:
    """The frame, and the words at its queries and keys; None where only positions are known."""

    frame: Frame
    queries: tuple[str, ...] | None
    keys: tuple[str, ...] | None

    @classmethod
    def of(cls, tokens: Tokens, keys: Tokens | None = None, q_start: int | None = None) -> "Axes":
        """Axes of words, a text that is split at spaces, or a number of tokens; keys are the same unless given."""
        q_len, query_words = _words(tokens, "tokens")
        k_len, key_words = (q_len, query_words) if keys is None else _words(keys, "keys")
        return cls(Frame.of(q_len, k_len, q_start), query_words, key_words)

    @property
    def sizes(self) -> str:
        return f"{counted(self.frame.q_len, 'query', 'queries')} x {counted(self.frame.k_len, 'key', 'keys')}"


def _words(tokens: Tokens, argument: str) -> tuple[int, tuple[str, ...] | None]:
    if isinstance(tokens, str):
        tokens = tokens.split()
    if isinstance(tokens, Sequence):
        words = tuple(tokens)
        if others := [word for word in words if not isinstance(word, str)]:
            advice = "For positions without words give their number."
            raise BadArgument(argument, expected="words", got=repr(others[0]), advice=advice)
        if not words:
            raise BadArgument(argument, expected="at least one word", got="none")
        return len(words), tuple(map(drawn, words))
    return whole_number(tokens, argument, at_least=1), None
