"""The errors of the house: each says what was expected, what came, which argument, and what to do.

>>> from rearview import window, RearviewError
>>> try:
...     window(0)
... except RearviewError as error:
...     print(error)
window(n): expected an integer of at least 1, got 0. A window counts the position itself: window(1) hears only itself.
"""

from collections.abc import Sequence


class RearviewError(Exception):
    """Anything that Rearview refuses. Catch this one to catch them all."""


class BadArgument(RearviewError, ValueError):
    """An argument that cannot be right, whatever the engine."""

    def __init__(self, argument: str, *, expected: str, came: object, advice: str = ""):
        self.argument = argument
        self.expected = expected
        self.came = came
        self.advice = advice
        super().__init__(f"{argument}: expected {expected}, got {came}.{' ' + advice if advice else ''}")


class Unsupported(RearviewError):
    """A valid request that this engine or format cannot do exactly; `reasons` says why."""

    def __init__(self, what: str, reasons: Sequence[str], *, advice: str = ""):
        self.what = what
        self.reasons = tuple(reasons)
        lines = [f"{what}:", *(f"  - {reason}" for reason in self.reasons)]
        super().__init__("\n".join(lines + ([advice] if advice else [])))


class NoRangeForm(Unsupported):
    """A mask whose rows are not a few ranges (`dilated`, `where`, `dense`)."""


class BadExpression(RearviewError, ValueError):
    """A mask expression, as text, that is not one."""


class MissingExtra(RearviewError, ImportError):
    """An optional dependency that is not installed."""

    def __init__(self, package: str, *, extra: str, needed_for: str):
        super().__init__(
            f"{needed_for} needs the package {package!r}, which is not installed. "
            f"Install it with: pip install 'rearview[{extra}]'"
        )


class BadFile(RearviewError, ValueError):
    """A file that is not what it should be; the message says where in it, and why."""

    def __init__(self, path: object, why: str):
        self.path = str(path)
        self.why = why
        super().__init__(f"{path}: {why}")
