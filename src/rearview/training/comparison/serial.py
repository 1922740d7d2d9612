"""A Comparison as JSON, and back: every number in full, so that the report can be made again.

>>> from rearview.training.comparison.serial import from_json
>>> from_json("{}", "comparison.json")
Traceback (most recent call last):
rearview.errors.BadFile: comparison.json: is not a comparison: the field 'format' is missing.
"""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from typing import Any

from rearview.errors import BadFile
from rearview.training.comparison.result import Comparison

FORMAT = "rearview comparison 1"


def to_json(comparison: Comparison) -> str:
    """One JSON object."""
    return json.dumps({"format": FORMAT, **dataclasses.asdict(comparison)}, allow_nan=False) + "\n"


def from_json(text: str, path: object) -> Comparison:
    """What `to_json` wrote; `path` is for messages."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise BadFile(path, f"is not JSON: {error}.") from error
    try:
        if not isinstance(data, dict):
            raise TypeError(f"expected an object, got {type(data).__name__}")
        if (came := _field(data, "format")) != FORMAT:
            raise TypeError(f"expected the format {FORMAT!r}, got {came!r}")
        return _read(Comparison, data, "")
    except TypeError as error:
        raise BadFile(path, f"is not a comparison: {error}.") from error


def _field(data: dict[str, Any], name: str) -> Any:
    if name not in data:
        raise TypeError(f"the field {name!r} is missing")
    return data[name]


def _read(kind: Any, data: Any, place: str) -> Any:
    """A value of this type, from JSON; types are checked, so that what is read is what would be written."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(data, dict):
            raise TypeError(f"{place}: expected an object, got {type(data).__name__}")
        hints = typing.get_type_hints(kind)
        names = [each.name for each in dataclasses.fields(kind)]
        return kind(**{name: _read(hints[name], _field(data, name), f"{place}.{name}".lstrip(".")) for name in names})
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        return None if data is None else _read(arguments[0], data, place)
    if origin is tuple:
        if not isinstance(data, list):
            raise TypeError(f"{place}: expected a list, got {type(data).__name__}")
        each = [arguments[0]] * len(data) if arguments[-1] is Ellipsis else list(arguments)
        if len(each) != len(data):
            raise TypeError(f"{place}: expected {len(each)} values, got {len(data)}")
        # The path of one of ten thousand cells would help nobody, and costs most of the time.
        return tuple(_read(one, value, place) for one, value in zip(each, data, strict=True))
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    plain = origin or kind
    if not isinstance(data, plain) or (plain is int and isinstance(data, bool)):
        raise TypeError(f"{place}: expected {plain.__name__}, got {type(data).__name__}")
    return data
