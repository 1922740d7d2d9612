"""Special tokens, which have no text: the end of a document, a masked token, padding, masked spans.

Their ids follow those of the ordinary tokens:

>>> from rearview.text.specials import END, MASK, Specials
>>> names = Specials((END, MASK), start=256)
>>> names.end_id, names.mask_id, names.pad_id
(256, 257, None)
>>> names.split("a<mask>b")
['a', 257, 'b']
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rearview.errors import BadArgument

END = "<end>"
"""The token that ends a document."""
MASK = "<mask>"
"""The token that stands for a hidden one, which a BERT fills in."""
PAD = "<pad>"
"""The token that fills a row up to the length of the others; no query hears it."""


def sentinel(number: int) -> str:
    """The name of the token that stands for a masked span, as T5 spells it; spans are numbered from 0.

    >>> sentinel(0)
    '<extra_id_0>'
    """
    return f"<extra_id_{number}>"


class Specials:
    """The names of the special tokens, and their ids from `start` on."""

    def __init__(self, names: Sequence[str], *, start: int):
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise BadArgument("specials", expected=f'names such as ("{END}", "{MASK}")', got=repr(names))
        if len(set(names)) < len(names):
            raise BadArgument("specials", expected="distinct names", got=repr(tuple(names)))
        self.names = tuple(names)
        self.start = start
        self.ids = {name: start + n for n, name in enumerate(self.names)}
        # The longest name first: one name may be the beginning of another.
        self._pattern = re.compile("|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True)))

    @property
    def end_id(self) -> int | None:
        return self.ids.get(END)

    @property
    def mask_id(self) -> int | None:
        return self.ids.get(MASK)

    @property
    def pad_id(self) -> int | None:
        return self.ids.get(PAD)

    @property
    def sentinel_ids(self) -> tuple[int, ...]:
        return sentinels(self.ids)

    def split(self, text: str) -> list[str | int]:
        """The text split at the names of special tokens, with their ids in place of the names."""
        if not self.names:
            return [text] if text else []
        parts: list[str | int] = []
        at = 0
        for found in self._pattern.finditer(text):
            parts += [text[at : found.start()], self.ids[found.group()]]
            at = found.end()
        return [part for part in [*parts, text[at:]] if part != ""]


def sentinels(ids: dict[str, int]) -> tuple[int, ...]:
    """The ids of <extra_id_0>, <extra_id_1>, ... up to the first that is missing.

    >>> sentinels({"<extra_id_0>": 99, "<extra_id_1>": 98, "<pad>": 0})
    (99, 98)
    """
    found: list[int] = []
    while (name := sentinel(len(found))) in ids:
        found.append(ids[name])
    return tuple(found)
