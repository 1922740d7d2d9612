"""Values are read back unchanged, and data that does not fit a type is refused with its place."""

import json
import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from rearview.codec import Reader, brief, json_text, parse_json, plain
from rearview.errors import BadArgument, BadFile


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Part:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass
class Whole:
    colour: Colour
    kind: Literal["one", "two"]
    parts: list[Part]
    pair: tuple[str, float]
    number: float | int | str | bool
    maybe: Part | None
    by_name: dict[str, float]
    anything: Any = None
    flags: tuple[bool, ...] = field(default_factory=tuple)


def a_whole(**changes: Any) -> Whole:
    fields = {
        "colour": Colour.BLUE,
        "kind": "two",
        "parts": [Part("a", (1, 2)), Part("b")],
        "pair": ("x", -0.0),
        "number": 3,
        "maybe": None,
        "by_name": {"low": -math.inf, "high": 1e308},
        "anything": {"deep": [1, None]},
        "flags": (True, False),
    }
    return Whole(**{**fields, **changes})


@pytest.mark.parametrize("number", [3, 3.0, "three", True, math.inf, -0.0])
def test_values_are_read_back_with_their_types(number: Any):
    whole = a_whole(number=number, maybe=Part("c"))
    again = Reader("x").read(Whole, parse_json(json_text(plain(whole)), "x"))
    assert again == whole
    assert type(again.number) is type(number)
    assert math.copysign(1, again.pair[1]) == -1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([[1.5, -0.0], [math.inf, 1e-45]]),
        torch.tensor([0.1, 1 / 3], dtype=torch.float64),
        torch.tensor([1.0, 2.5], dtype=torch.bfloat16),
        torch.tensor([[1 + 2j, 3 - 4j]]),
        torch.tensor([2**62, -1]),
        torch.tensor([True, False]),
        torch.tensor(7, dtype=torch.uint8),
        torch.empty(2, 0, 3),
    ],
    ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}",
)
def test_tensors_keep_dtype_shape_and_every_bit(tensor: Tensor):
    again = Reader("x").read(Tensor, json.loads(json_text(plain(tensor))))
    assert (again.dtype, again.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(again.reshape(-1).view(torch.uint8), tensor.reshape(-1).view(torch.uint8))


def tensor_of(dtype: str, shape: Any, values: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "values": values}


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (Part, [], "expected an object, got []"),
        (Part, {"sizes": []}, "name: expected this field, got nothing"),
        (Part, {"name": "a", "sizes": [1, 2.0]}, "sizes[1]: expected an integer, got 2.0"),
        (Colour, "green", 'expected one of "red", "blue", got "green"'),
        (Literal["one"], [], 'expected one of "one", got []'),
        (tuple[str, float], ["a"], "expected a list of 2, got 1 values"),
        (tuple[str, float], ["a", "b"], '[1]: expected a number, got "b"'),
        (dict[str, float], {"a": None}, "a: expected a number, got null"),
        (dict[str, list[Part]], {"a": [{"name": None}]}, "a[0].name: expected a string, got null"),
        (float | str, None, "expected one of float, str, got null"),
        (float, 10**400, f"expected a number, got {'1' + 34 * '0'}…"),
        (Tensor, tensor_of("float32", [2], [1, [2]]), "values[1]: expected a number, got a list"),
        (Tensor, tensor_of("float32", [2, 2], [[1, 2], [3]]), "values[1]: expected a list of 2, got 1 values"),
        (Tensor, tensor_of("load", [1], [1]), 'dtype: expected a dtype of PyTorch, got "load"'),
        (Tensor, tensor_of("int8", "2", []), 'shape: expected a list, got "2"'),
        (Tensor, tensor_of("int64", [10**30], []), f"values: expected a list of {10**30}, got 0 values"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(kind: Any, data: Any, message: str):
    with pytest.raises(BadFile) as caught:
        Reader("my.json").read(kind, data)
    assert str(caught.value) == f"my.json: {message}"


@pytest.mark.parametrize("values", [tensor_of("int8", [1], [300]), tensor_of("float32", [0, 10**30], [])])
def test_what_torch_cannot_hold_is_refused(values: Any):
    with pytest.raises(BadFile, match=r"^x: expected values of (int8|float32) in the shape a list, got "):
        Reader("x").read(Tensor, values)


def test_a_dataclass_that_refuses_its_fields_is_named():
    @dataclass
    class Even:
        number: int

        def __post_init__(self):
            if self.number % 2:
                raise BadArgument("number", expected="an even number", got=self.number)

    reader = Reader("x", names={"Even": Even})
    assert reader.read(Even, {"number": 2}).number == 2
    with pytest.raises(BadFile) as caught:
        reader.read(list[Even], [{"number": 2}, {"number": 3}])
    assert str(caught.value) == "x: [1]: expected values that Even accepts, got number: expected an even number, got 3"


def test_what_has_no_plain_form_is_not_written():
    with pytest.raises(TypeError, match=r"^parts\[0\]: function has no plain form$"):
        plain({"parts": [test_what_has_no_plain_form_is_not_written]})


def test_long_values_are_cut_in_messages():
    assert brief("a" * 99) == '"' + "a" * 34 + "…"
    assert brief("\x1b[2J") == '"\\u001b[2J"'
