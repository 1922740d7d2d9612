"""Which releases of transformers are understood.

>>> check_release("register()")
"""

from __future__ import annotations

from rearview.errors import MissingExtra, Unsupported

# Masks are functions that can be read, and all models ask for them the same way, since this one.
OLDEST = 5


def check_release(needed_for: str) -> None:
    """Raise where transformers is not installed, or is too old."""
    try:
        from transformers import __version__
    except ImportError as error:
        raise MissingExtra("transformers", extra="transformers", needed_for=needed_for) from error
    if int(__version__.partition(".")[0]) < OLDEST:
        raise Unsupported(
            f"{needed_for} with transformers {__version__}",
            [f"its models make and hand over masks in other ways than those of transformers {OLDEST}"],
            advice=f"Install a newer one: pip install 'transformers>={OLDEST}'",
        )
