"""The constructors that a mask expression may call: how an error message writes each, and what reads its argument.

    >>> import rearview.masks
    >>> CONSTRUCTORS["window"].form
    'window(n) or window(n, ahead=m)'

A public constructor registers itself with `@expression(...)`; `parser.py` reads the table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rearview.masks.mask import Mask

Function = TypeVar("Function", bound="Callable[..., Mask]")


@dataclass(frozen=True)
class Constructor:
    """`read` turns the numbers and lists of an expression into the argument; it raises ValueError with a sentence."""

    form: str
    make: Callable[..., Mask]
    read: Callable[[object], object] | None


CONSTRUCTORS: dict[str, Constructor] = {}


def expression(form: str, *, read: Callable[[object], object] | None = None) -> Callable[[Function], Function]:
    """Decorator of a public constructor: expressions may call it by its name, written as in `form`."""

    def register(function: Function) -> Function:
        CONSTRUCTORS[function.__name__] = Constructor(form, function, read)
        return function

    return register
