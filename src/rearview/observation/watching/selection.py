"""Selecting the layers and heads to watch: by number, by name, by slice.

>>> chosen_layers([-1, "blocks.0.attention"], ["blocks.0.attention", "blocks.1.attention"])
[0, 1]
>>> chosen_heads(slice(0, 2), 4)
(0, 1)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from rearview.errors import BadArgument

# One choice; a list of choices is allowed everywhere too.
LayerChoice = int | str | slice | range
HeadChoice = int | slice | range


def chosen_layers(layers: LayerChoice | Iterable[LayerChoice] | None, names: Sequence[str]) -> list[int]:
    """The numbers of the chosen layers, in order; all of them for None.

    A name may contain "*": "decoder.*" means all layers of the decoder.
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
            raise BadArgument("layers", expected=f"attention layers of the model: {known}", got=repr(choice))
        chosen.update(found)
    if not chosen:
        raise BadArgument("layers", expected="at least one layer", got=repr(layers))
    return sorted(chosen)


def chosen_heads(
    heads: HeadChoice | Iterable[HeadChoice] | None, count: int, name: str = "the model"
) -> tuple[int, ...]:
    """The numbers of the chosen heads, in order; all of them for None."""
    if heads is None:
        return tuple(range(count))
    chosen: set[int] = set()
    for choice in _choices(heads):
        found = [] if isinstance(choice, str) else _numbers(choice, count)
        if not found:
            raise BadArgument("heads", expected=f"heads of {name}, 0 to {count - 1}", got=repr(choice))
        chosen.update(found)
    if not chosen:
        raise BadArgument("heads", expected="at least one head", got=repr(heads))
    return tuple(sorted(chosen))


def _choices(given: object) -> list[object]:
    return list(given) if isinstance(given, Iterable) and not isinstance(given, (str, range)) else [given]


def _numbers(choice: object, count: int) -> list[int]:
    """The numbers below `count` that a number, a slice or a range means; none for anything else."""
    if isinstance(choice, slice):
        return list(range(count))[choice]
    if isinstance(choice, range):
        return list(choice) if choice and min(choice) >= 0 and max(choice) < count else []
    if not isinstance(choice, int) or isinstance(choice, bool) or not -count <= choice < count:
        return []
    return [choice % count]
