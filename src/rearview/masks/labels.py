"""Tokens as labels: what stands beside a row and above a column, cut and padded to terminal cells.

>>> from rearview.masks.labels import Axes, cut
>>> Axes.of("much", "I love sushi very much").frame
Frame(q_len=1, k_len=5, q_start=4)
>>> cut("restaurant", 6)
'resta…'
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

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
        """Words, a text to split at spaces, or a count; the keys are the same tokens unless given."""
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
        if strangers := [word for word in words if not isinstance(word, str)]:
            advice = "For numbers instead of words give their count."
            raise BadArgument(argument, expected="words", came=repr(strangers[0]), advice=advice)
        if not words:
            raise BadArgument(argument, expected="at least one word", came="none")
        return len(words), tuple(map(drawn, words))
    return whole_number(tokens, argument, at_least=1), None


def printable(text: str) -> str:
    """The text with control characters written out: a newline or an escape code would tear a drawing apart.

    >>> printable("a\\tb")
    'a\\\\tb'
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def drawn(word: str) -> str:
    """A token as a label: control characters written out, and the spaces at its edges visible.

    >>> drawn(" love"), drawn("a\\tb")
    ('␣love', 'a\\\\tb')
    """
    # Tokens of real models begin with a space more often than not, and at an edge it would not be seen.
    word = printable(word)
    inner = word.strip(" ")
    if not inner:
        return "␣" * len(word)
    before = len(word) - len(word.lstrip(" "))
    return "␣" * before + inner + "␣" * (len(word) - before - len(inner))


def counted(number: int, one: str, many: str) -> str:
    """
    >>> counted(1, "query", "queries"), counted(4096, "query", "queries")
    ('1 query', '4,096 queries')
    """
    return f"{number:,} {one if number == 1 else many}"


def percent(part: int, whole: int) -> str:
    """A share to one digit that never rounds to nothing or to everything.

    >>> percent(2, 3), percent(1, 10**9), percent(10**9 - 1, 10**9), percent(3, 3)
    ('66.7 %', 'under 0.1 %', 'over 99.9 %', '100.0 %')
    """
    share = 100 * part / max(1, whole)
    if part > 0 and share < 0.05:
        return "under 0.1 %"
    if part < whole and share >= 99.95:
        return "over 99.9 %"
    return f"{share:.1f} %"


def width(text: str) -> int:
    """How many terminal cells a text takes.

    >>> width("sushi"), width("寿司")
    (5, 4)
    """
    return sum(_cells(character) for character in text)


def _cells(character: str) -> int:
    # Combining marks and joiners sit on the character before them.
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def letters(text: str) -> list[str]:
    """The text letter by letter, marks kept with the letter that they sit on.

    >>> [len(letter) for letter in letters("nin\\u0303o")]
    [1, 1, 2, 1]
    """
    found: list[str] = []
    for character in text:
        if found and _cells(character) == 0:
            found[-1] += character
        else:
            found.append(character)
    return found


def cut(text: str, most: int) -> str:
    """The text in at most `most` cells, with `…` where it was cut."""
    if width(text) <= most:
        return text
    kept, used = "", 0
    for character in text:
        used += _cells(character)
        if used > most - 1:
            break
        kept += character
    return kept + "…"


def left(text: str, cells: int) -> str:
    return text + " " * (cells - width(text))


def right(text: str, cells: int) -> str:
    return " " * (cells - width(text)) + text


def centre(text: str, cells: int) -> str:
    return left(" " * ((cells - width(text)) // 2) + text, cells)
