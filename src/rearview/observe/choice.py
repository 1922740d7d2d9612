"""Which layers and heads to watch: by number, by name, by slice.

>>> chosen_layers([-1, "blocks.0.attention"], ["blocks.0.attention", "blocks.1.attention"])
[0, 1]
>>> chosen_heads(slice(0, 2), 4)
(0, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

from rearview.errors import BadArgument


def chosen_layers(layers: Any, names: Sequence[str]) -> list[int]:
    """The numbers of the layers that are meant, in order; all of them for None.

    A name may hold "*": "decoder.*" are all layers of the decoder.
    """
    if layers is None:
        return list(range(len(names)))
    chosen: set[int] = set()
    for choice in _choices(layers):
        if isinstance(choice, str):
            found = [n for n, name in enumerate(names) if name == choice or fnmatchcase(name, choice)]
        else:
            found = _numbers(choice, len(names))
        if not found:
            known = ", ".join(f"{n} ({name})" for n, name in enumerate(names))
            raise BadArgument("layers", expected=f"attention layers of the model: {known}", came=repr(choice))
        chosen.update(found)
    if not chosen:
        raise BadArgument("layers", expected="at least one layer", came=repr(layers))
    return sorted(chosen)


def chosen_heads(heads: Any, count: int, name: str = "the model") -> tuple[int, ...]:
    """The numbers of the heads that are meant, in order; all of them for None."""
    if heads is None:
        return tuple(range(count))
    chosen: set[int] = set()
    for choice in _choices(heads):
        found = [] if isinstance(choice, str) else _numbers(choice, count)
        if not found:
            raise BadArgument("heads", expected=f"heads of {name}, 0 to {count - 1}", came=repr(choice))
        chosen.update(found)
    if not chosen:
        raise BadArgument("heads", expected="at least one head", came=repr(heads))
    return tuple(sorted(chosen))


def _choices(given: Any) -> list[Any]:
    is_list = isinstance(given, Iterable) and not isinstance(given, (str, range))
    return list(given) if is_list else [given]


def _numbers(choice: Any, count: int) -> list[int]:
    """What a number, a slice or a range means among `count`; nothing when it means nothing."""
    if isinstance(choice, slice):
        return list(range(count))[choice]
    if isinstance(choice, range):
        return list(choice) if choice and min(choice) >= 0 and max(choice) < count else []
    is_number = isinstance(choice, int) and not isinstance(choice, bool) and -count <= choice < count
    return [choice % count] if is_number else []
