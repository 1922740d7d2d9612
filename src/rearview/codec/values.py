"""Typed values as plain data (what JSON can hold), and back.

The type hints of a dataclass say what its fields may hold, so a file needs no type names and can only build the classes
that the caller asked for. A tensor is an object {"dtype", "shape", "values"}, or the name of an array in an archive. A
number that is not finite is one of the strings "inf", "-inf" and "nan", because JSON has no literal for it.

>>> import torch
>>> plain(torch.tensor([[1.0, -torch.inf]]))
{'dtype': 'float32', 'shape': [1, 2], 'values': [[1.0, '-inf']]}
>>> Reader("my.json").read(tuple[int, ...], [1, 2, "three"])
Traceback (most recent call last):
rearview.errors.BadFile: my.json: [2]: expected an integer, got "three"
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

import torch
from torch import Tensor

from rearview.drawing.cells import cut, printable
from rearview.errors import BadFile, RearviewError

if TYPE_CHECKING:
    import numpy
    from _typeshed import DataclassInstance

T = TypeVar("T")

NOT_FINITE = ("inf", "-inf", "nan")
DTYPES = {str(dtype).removeprefix("torch."): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
# The number of characters of a value that an error shows.
SHOWN = 36


@overload
def plain(
    value: DataclassInstance | Mapping[str, object], arrays: dict[str, numpy.ndarray] | None = ..., place: str = ...
) -> dict[str, object]: ...


@overload
def plain(value: object, arrays: dict[str, numpy.ndarray] | None = ..., place: str = ...) -> object: ...


def plain(value: object, arrays: dict[str, numpy.ndarray] | None = None, place: str = "") -> object:
    """The value as lists, dicts, strings and numbers. Tensors are put into `arrays`, if it is given."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case Enum():
            return value.value
        case Tensor():
            return _plain_tensor(value, arrays, place)
        case Mapping():
            return {str(name): plain(part, arrays, _inside(place, f".{name}")) for name, part in value.items()}
        case list() | tuple():
            return [plain(part, arrays, f"{place}[{n}]") for n, part in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: plain(getattr(value, name), arrays, _inside(place, f".{name}")) for name in names}
    raise TypeError(f"{place or 'value'}: {type(value).__name__} has no plain form")


def _plain_tensor(tensor: Tensor, arrays: dict[str, numpy.ndarray] | None, place: str) -> dict[str, object]:
    tensor = tensor.detach().cpu()
    if arrays is not None:
        arrays[place] = tensor.numpy()
        return {"array": place}
    about = {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    values = tensor.double().tolist() if tensor.is_floating_point() else tensor.tolist()
    return {**about, "values": plain(values)}


class _Wrong(Exception):
    """What is wrong with a value. Each container adds its step to the path as the error passes it, so that reading
    correct data builds no paths."""

    def __init__(self, expected: str, got: str):
        self.expected, self.got = expected, got
        self.steps: list[str] = []

    def inside(self, step: str) -> _Wrong:
        self.steps.append(step)
        return self


@dataclasses.dataclass(frozen=True)
class Reader:
    """Reads plain data as values of a type and refuses, with its place, what does not fit.

    Args:
        source: the file, or another name for the data, in errors.
        arrays: the arrays of an archive, which tensors are taken from.
        names: classes in annotations that their module imports for type checkers only.
    """

    source: object
    arrays: Mapping[str, numpy.ndarray] | None = None
    names: Mapping[str, type] = dataclasses.field(default_factory=dict)

    def read(self, kind: type[T], data: object, place: str = "", *, given: Mapping[str, object] | None = None) -> T:
        """The data as a value of this type. `given` are fields of a dataclass that the caller has read itself."""
        try:
            return self._read(kind, data) if given is None else self._instance(kind, data, given)
        except _Wrong as wrong:
            self._report(place, wrong)

    def header(self, data: object, form: str, version: int) -> dict[str, object]:
        """The data, if it is an object whose "format" and "version" are these."""
        if not isinstance(data, dict):
            self.refuse("", "an object", brief(data))
        if data.get("format") != form:
            self.refuse("format", json.dumps(form), brief(data.get("format")))
        if data.get("version") != version or isinstance(data["version"], bool):
            self.refuse("version", f"{version}, the version that this release reads", brief(data.get("version")))
        return data

    def refuse(self, place: str, expected: str, got: object) -> NoReturn:
        """Raise `BadFile` for the value at this place."""
        raise BadFile(self.source, f"{f'{place}: ' if place else ''}expected {expected}, got {got}")

    def _report(self, place: str, wrong: _Wrong) -> NoReturn:
        self.refuse(f"{place}{''.join(reversed(wrong.steps))}".removeprefix("."), wrong.expected, wrong.got)

    def _read(self, kind: Any, data: object) -> Any:
        if kind is Any or kind is object:
            return data
        if kind is Tensor:
            return self._tensor(data)
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            return self._instance(kind, data, {})
        origin, arguments = typing.get_origin(kind) or kind, typing.get_args(kind)
        if origin in (types.UnionType, typing.Union):
            return self._union(arguments, data)
        if origin is Literal:
            return _checked(data, data in arguments, f"one of {', '.join(json.dumps(each) for each in arguments)}")
        if isinstance(origin, type):
            if issubclass(origin, Enum):
                members = {member.value: member for member in origin}
                if not isinstance(data, str) or data not in members:
                    raise _Wrong(f"one of {', '.join(map(json.dumps, members))}", brief(data))
                return members[data]
            if issubclass(origin, Mapping):
                each = arguments[1] if arguments else Any
                given = _checked(data, isinstance(data, dict), "an object")
                return {name: self._step(each, part, f".{name}") for name, part in given.items()}
            if origin in (tuple, list, Sequence):
                return self._sequence(list if origin is list else tuple, arguments, data)
        return SCALARS[origin](data)

    def _instance(self, kind: type[T], data: object, given: Mapping[str, object]) -> T:
        """An instance of a dataclass: its fields from the data, except those that are `given`."""
        stored = _checked(data, isinstance(data, dict), "an object")
        hints = typing.get_type_hints(kind, localns=dict(self.names))
        fields: dict[str, Any] = dict(given)
        for field in dataclasses.fields(kind):  # pyright: ignore[reportArgumentType]
            if field.name in given:
                continue
            if field.name not in stored:
                raise _Wrong("this field", "nothing").inside(f".{field.name}")
            fields[field.name] = self._step(hints[field.name], stored[field.name], f".{field.name}")
        try:
            return kind(**fields)
        except RearviewError as error:
            raise _Wrong(f"values that {kind.__name__} accepts", str(error).rstrip(".")) from error

    def _step(self, kind: Any, data: object, step: str) -> Any:
        try:
            return self._read(kind, data)
        except _Wrong as wrong:
            raise wrong.inside(step) from wrong.__cause__

    def _sequence(self, make: Callable[[list[Any]], Any], arguments: tuple[Any, ...], data: object) -> Any:
        given = _checked(data, isinstance(data, list), "a list")
        kinds: Iterable[Any] = arguments or (Any,)
        if len(arguments) > 1 and arguments[-1] is not Ellipsis:
            if len(given) != len(arguments):
                raise _Wrong(f"a list of {len(arguments)}", f"{len(given)} values")
        else:
            kinds = [next(iter(kinds))] * len(given)
        found: list[Any] = []
        try:
            for kind, value in zip(kinds, given, strict=True):
                found.append(self._read(kind, value))
        except _Wrong as wrong:
            raise wrong.inside(f"[{len(found)}]") from wrong.__cause__
        return make(found)

    def _union(self, kinds: tuple[Any, ...], data: object) -> Any:
        if data is None and type(None) in kinds:
            return None
        kinds = tuple(kind for kind in kinds if kind is not type(None))
        if len(kinds) == 1:
            return self._read(kinds[0], data)
        # A float that is not finite is written as a string; any other value as what it is.
        first = float if data in NOT_FINITE else type(data)
        for kind in sorted(kinds, key=lambda kind: kind is not first):
            try:
                return self._read(kind, data)
            except _Wrong:
                continue
        raise _Wrong(f"one of {', '.join(getattr(kind, '__name__', str(kind)) for kind in kinds)}", brief(data))

    def _tensor(self, data: object) -> Tensor:
        about = _checked(data, isinstance(data, dict), "an object that describes a tensor")
        if self.arrays is not None:
            name = about.get("array")
            if not isinstance(name, str) or name not in self.arrays:
                raise _Wrong("the name of an array of this file", brief(name))
            try:
                return torch.from_numpy(self.arrays[name])
            except TypeError as error:
                raise _Wrong("an array of numbers", str(error)) from error
        dtype, shape = about.get("dtype"), self._step(tuple[int, ...], about.get("shape"), ".shape")
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise _Wrong("a dtype of PyTorch", brief(dtype)).inside(".dtype")
        kind = DTYPES[dtype]
        real, sizes = (kind.to_real(), (*shape, 2)) if kind.is_complex else (kind, shape)
        read = _number if real.is_floating_point else SCALARS[bool if real is torch.bool else int]
        try:
            nested = _nested(about.get("values"), sizes, read)
            values = torch.tensor(nested, dtype=real, device="cpu").reshape(sizes)
        except _Wrong as wrong:
            raise wrong.inside(".values") from wrong.__cause__
        except (RuntimeError, OverflowError, TypeError, ValueError) as error:
            raise _Wrong(f"values of {dtype} in the shape {brief(list(shape))}", str(error)) from error
        return torch.view_as_complex(values) if kind.is_complex else values


def brief(value: object) -> str:
    """A value in a message: as JSON writes it, and short.

    >>> brief([1, 2]), brief(None), brief("a" * 99)
    ('a list', 'null', '"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…')
    """
    match value:
        case list() if value:
            return "a list"
        case dict() if value:
            return "an object"
        case str() | list() | dict() | bool() | None | int() | float():
            return cut(printable(json.dumps(value, ensure_ascii=False)), SHOWN)
    return type(value).__name__


def _nested(data: object, shape: Sequence[int], read: Callable[[object], Any]) -> Any:
    """Lists of lists of exactly this shape."""
    if not shape:
        return read(data)
    given = _checked(data, isinstance(data, list), f"a list of {shape[0]}")
    if len(given) != shape[0]:
        raise _Wrong(f"a list of {shape[0]}", f"{len(given)} values")
    found: list[Any] = []
    try:
        for value in given:
            found.append(_nested(value, shape[1:], read))
    except _Wrong as wrong:
        raise wrong.inside(f"[{len(found)}]") from None
    return found


def _number(data: object) -> float:
    if isinstance(data, str) and data in NOT_FINITE:
        return float(data)
    try:
        number = float(data) if isinstance(data, (int, float)) and not isinstance(data, bool) else math.nan
    except OverflowError:
        number = math.nan
    # JSON such as 1e999 or NaN is read as a float that is not finite.
    if not math.isfinite(number):
        raise _Wrong("a number", brief(data))
    return number


def _checked(data: Any, fits: bool, expected: str) -> Any:
    if not fits:
        raise _Wrong(expected, brief(data))
    return data


SCALARS: dict[Any, Callable[[object], Any]] = {
    str: lambda data: _checked(data, isinstance(data, str), "a string"),
    bool: lambda data: _checked(data, isinstance(data, bool), "true or false"),
    int: lambda data: _checked(data, isinstance(data, int) and not isinstance(data, bool), "an integer"),
    float: _number,
    type(None): lambda data: _checked(data, data is None, "null"),
}


def _inside(place: str, step: str) -> str:
    return f"{place}{step}".removeprefix(".")
