"""The fields of a request, checked: what the page sends is treated as untrusted input.

>>> fields = Fields({"text": "I love", "layer": 2})
>>> fields.text("text"), fields.number("layer", below=4), fields.number("head", default=0, below=4)
('I love', 2, 0)
"""

from __future__ import annotations

import json
from typing import Any

from rearview.errors import BadArgument
from rearview.masks import Mask
from rearview.masks.parser import parse

REQUIRED: Any = object()


class Fields:
    """The JSON object of a request. Each method returns one field, or raises `BadArgument`."""

    def __init__(self, values: object):
        if not isinstance(values, dict):
            raise BadArgument("request", expected="a JSON object", got=type(values).__name__)
        self._values: dict[str, Any] = values

    @classmethod
    def of(cls, body: bytes) -> Fields:
        """The fields of the body of a request."""
        try:
            values = json.loads(body)
        except (ValueError, RecursionError):
            raise BadArgument("request", expected="JSON", got=f"{len(body)} bytes of something else") from None
        return cls(values)

    def _get(self, name: str, default: Any) -> Any:
        if name not in self._values and default is REQUIRED:
            raise BadArgument(name, expected="a value", got="none")
        return self._values.get(name, default)

    def text(self, name: str, *, default: Any = REQUIRED) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise BadArgument(name, expected="text", got=repr(value))
        return value

    def flag(self, name: str) -> bool:
        value = self._get(name, False)
        if not isinstance(value, bool):
            raise BadArgument(name, expected="true or false", got=repr(value))
        return value

    def optional_number(self, name: str, *, below: int, at_least: int = 0) -> int | None:
        """A number, or None where there is none."""
        return None if self._values.get(name) is None else self.number(name, below=below, at_least=at_least)

    def number(self, name: str, *, below: int, at_least: int = 0, default: Any = REQUIRED) -> int:
        value = self._get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value < below:
            whole = "a whole number" if isinstance(value, float) else "a number"
            got = "none" if value is None else repr(value)
            raise BadArgument(name, expected=f"{whole} from {at_least} to {below - 1}", got=got)
        return value

    def real(self, name: str, *, at_least: float, at_most: float, default: Any = REQUIRED) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not at_least <= value <= at_most:
            got = "none" if value is None else repr(value)
            raise BadArgument(name, expected=f"a number from {at_least:g} to {at_most:g}", got=got)
        return float(value)

    def mask(self, name: str) -> Mask | None:
        """The mask of an expression; None for none, or for an empty one."""
        text = self.text(name, default="").strip()
        return parse(text) if text else None

    def objects(self, name: str, *, most: int) -> list[Fields]:
        value = self._get(name, REQUIRED)
        if not isinstance(value, list) or len(value) > most:
            raise BadArgument(name, expected=f"a list of at most {most} objects", got=type(value).__name__)
        return [Fields(each) for each in value]
