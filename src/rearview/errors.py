"""The errors of Rearview. Each says what was expected, what was given, which argument it is about, and what to do.

>>> from rearview import window, RearviewError
>>> try:
...     window(0)
... except RearviewError as error:
...     print(error)
window(n): expected an integer of at least 1, got 0. A window counts the query itself: window(1) hears only itself.
"""

from collections.abc import Sequence

__all__ = [
    "RearviewError",
    "BadArgument",
    "Unsupported",
    "NoRangeForm",
    "BadExpression",
    "MissingExtra",
    "BadFile",
]


# Longer texts are cut in the middle.
LONGEST_TEXT = 4000


class RearviewError(Exception):
    """The base class of all errors of Rearview.

    Its text may quote a file that is not trusted, so control characters other than newlines are written out, since a
    terminal would obey them, and a text of more than 4,000 characters is cut in the middle.

    >>> print(RearviewError("its activation is \x1b[2Jgelu"))
    its activation is \\x1b[2Jgelu
    """

    def __str__(self) -> str:
        text = _cut(super().__str__())
        return _cut("".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text))


def _cut(text: str) -> str:
    half = LONGEST_TEXT // 2
    return text if len(text) <= LONGEST_TEXT else f"{text[:half]} ... {text[-half:]}"


class BadArgument(RearviewError, ValueError):
    """An argument that is invalid for every engine."""

    def __init__(self, argument: str, *, expected: str, got: object, advice: str = ""):
        self.argument = argument
        self.expected = expected
        self.got = got
        self.advice = advice
        super().__init__(f"{argument}: expected {expected}, got {got}.{' ' + advice if advice else ''}")


class Unsupported(RearviewError):
    """A valid request that this engine or format cannot fulfil exactly; `reasons` says why."""

    def __init__(self, what: str, reasons: Sequence[str], *, advice: str = ""):
        self.what = what
        self.reasons = tuple(reasons)
        lines = [f"{what}:", *(f"  - {reason}" for reason in self.reasons)]
        super().__init__("\n".join(lines + ([advice] if advice else [])))


class NoRangeForm(Unsupported):
    """Ranges were requested of a mask that has none (`dilated`, `where`, `dense`)."""


class BadExpression(RearviewError, ValueError):
    """A text that is not a mask expression."""


class MissingExtra(RearviewError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str):
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install {package} (the extra {extra!r} of rearview includes it)"
        )


class BadFile(RearviewError, ValueError):
    """A file that is missing, damaged or of another kind; the message says where in the file, and why."""

    def __init__(self, path: object, why: str):
        self.path = str(path)
        self.why = why
        super().__init__(f"{path}: {why}")
