"""JSON: it is read back bit for bit, and errors name the place."""

import json
import math
from typing import Any

import pytest
import torch

from rearview import RearviewError, Trace, causal, dense, explain, full, where
from rearview.explanation.serial import from_json, to_json
from tests.explanation.traces import TRACES, numbers, restaurant


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Bit for bit: -0.0 is not 0.0, and NaN is NaN."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(torch.int64), b.view(torch.int64))


@pytest.mark.parametrize("name", TRACES)
def test_what_was_written_is_read_back(name: str):
    trace = TRACES[name]()
    again = Trace.from_json(trace.to_json())
    for field in ("title", "labels", "key_labels", "reflexives", "heads", "scale"):
        assert getattr(again, field) == getattr(trace, field)
    assert repr(again.mask) == repr(trace.mask)
    assert torch.equal(again.visible, trace.visible)
    assert len(again.stages) == len(trace.stages)
    for one, other in zip(again.stages, trace.stages, strict=True):
        for field in ("key", "symbol", "formula", "latex", "sentence", "rows", "columns"):
            assert getattr(one, field) == getattr(other, field)
        assert same(one.matrix, other.matrix)
        assert same(one.unmasked, other.unmasked)
    for head in range(trace.heads):
        assert again.show(head) == trace.show(head)
        assert again.remarks(head) == trace.remarks(head)
    assert again.to_json() == trace.to_json()


def test_infinite_and_tiny_numbers():
    value = torch.tensor([[-0.0, 1e-320], [math.nan, math.inf], [0.1, 1 / 3]], dtype=torch.float64)
    trace = explain(query=numbers(3, 2), key=numbers(3, 2, seed=1), value=value)
    written = json.loads(trace.to_json())
    stage = next(stage for stage in written["stages"] if stage["key"] == "v")
    assert stage["matrix"]["values"] == [[[-0.0, 1e-320], ["nan", "inf"], [0.1, 1 / 3]]]
    mask = next(stage for stage in written["stages"] if stage["key"] == "mask")
    assert mask["matrix"]["values"][0][0] == [0.0, "-inf", "-inf"]
    again = from_json(trace.to_json())
    assert torch.equal(again["v"].matrix.isnan(), trace["v"].matrix.isnan())
    finite = trace["v"].matrix.nan_to_num(nan=7.0)
    assert same(again["v"].matrix.nan_to_num(nan=7.0), finite)


def test_the_file_is_json_that_a_person_can_read():
    text = restaurant().to_json()
    fields = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (fields["format"], fields["version"], fields["mask"]) == ("rearview-trace", 2, "causal()")
    assert "        [true, true, false, false]," in text.splitlines()
    assert '  "labels": ["Frank", "Emma", "Daniel", "Alex"],' in text.splitlines()
    assert fields["read_aloud"][0]["readings"][1] == "Emma — 98.2 % Frank, 1.8 % herself"
    assert "寿司" in TRACES["over_a_cache"]().to_json()
    assert text.endswith("}\n")


def test_half_a_character_can_be_written_and_read():
    trace = explain(query=numbers(1, 2), key=numbers(1, 2), value=numbers(1, 2), labels=["\ud83c"], title="\udf63")
    again = from_json(trace.to_json().encode().decode())
    assert (again.labels, again.title) == (("\ud83c",), "\udf63")


@pytest.mark.parametrize(
    "mask",
    [
        where(lambda i, j: (i + j) % 2 == 0),
        dense(torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]]).bool()),
        causal() & where(lambda b, h, i, j: j >= h, heads=2),
    ],
    ids=repr,
)
def test_a_mask_without_an_expression_is_read_as_a_dense_mask(mask):
    trace = explain(query=numbers(3, 4), key=numbers(3, 4), value=numbers(3, 4), num_heads=2, mask=mask)
    again = from_json(trace.to_json())
    assert repr(again.mask).startswith("dense(")
    expected = mask.to_bool(3).reshape(-1, 3, 3)
    assert torch.equal(again.mask.to_bool(3).reshape(-1, 3, 3), expected)
    assert again["mask"].formula == f"M = {mask!r}"
    assert again.readings(1) == trace.readings(1)


# What is refused.


def broken(**changes: Any) -> str:
    """The restaurant's JSON with fields set by path: `stages__7__matrix`; Gone removes one."""
    fields = json.loads(restaurant().to_json())
    for path, value in changes.items():
        *parents, last = [int(step) if step.isdigit() else step for step in path.split("__")]
        target = fields
        for step in parents:
            target = target[step]
        if value is Gone:
            del target[last]
        else:
            target[last] = value
    return json.dumps(fields)


class Gone:
    """Marks a field to remove."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON: line 1, column 1: this is not JSON: the file is empty\n  \n  ^"),
        (
            '{"format": }',
            'JSON: line 1, column 12: this is not JSON: Expecting value\n  {"format": }\n             ^',
        ),
        ("[" * 100_000, "JSON: the lists are nested too deeply"),
        ("[1, 2]", "JSON: expected an object, got a list"),
        ("NaN", "JSON: expected an object, got NaN"),
        (b"\xff", "JSON: line 1: this is not UTF-8 text (byte 0)"),
        (7, "JSON: expected JSON text, got int"),
        ("{}", 'JSON: format: expected "rearview-trace", got null'),
        (broken(format="other"), 'JSON: format: expected "rearview-trace", got "other"'),
        (broken(version=9), "JSON: version: expected 2, the version that this release reads, got 9"),
        (broken(version=True), "JSON: version: expected 2, the version that this release reads, got true"),
        (broken(labels=Gone), "JSON: labels: expected this field, got nothing"),
        (broken(stages=Gone), "JSON: stages: expected this field, got nothing"),
        (broken(stages__3__latex=Gone), "JSON: stages[3].latex: expected this field, got nothing"),
        (broken(stages__3__unmasked=Gone), "JSON: stages[3].unmasked: expected this field, got nothing"),
        (broken(title=7), "JSON: title: expected a string, got 7"),
        (broken(labels=["a", 1]), "JSON: labels[1]: expected a string, got 1"),
        (broken(labels=[]), "JSON: reflexives: expected 0 strings, got 4"),
        (broken(reflexives=["x"]), "JSON: reflexives: expected 4 strings, got 1"),
        (broken(heads=0), "JSON: heads: expected 1, as the stage q has, got 0"),
        (broken(heads=10**12), "JSON: heads: expected 1, as the stage q has, got 1000000000000"),
        (broken(heads=True), "JSON: heads: expected an integer, got true"),
        (broken(scale="inf"), "JSON: scale: expected a finite number, got inf"),
        (broken(scale=10**400), f"JSON: scale: expected a number, got {str(10**400)[:35]}…"),
        (broken(visible=[[[True]]]), "JSON: visible: expected an object that describes a tensor, got a list"),
        (
            broken(visible={"dtype": "bool", "shape": [1, 1, 1], "values": [[[True]]]}),
            "JSON: visible: expected the shape [1, 4, 4], or 1 head, got the shape [1, 1, 1]",
        ),
        (broken(visible__shape=[2, 4, 4]), "JSON: visible.values: expected a list of 2, got 1 values"),
        (broken(visible__dtype="int64"), "JSON: visible.values[0][0][0]: expected an integer, got true"),
        (broken(visible__dtype="load"), 'JSON: visible.dtype: expected a dtype of PyTorch, got "load"'),
        (broken(visible__shape=[10**30]), f"JSON: visible.values: expected a list of {10**30}, got 1 values"),
        (broken(visible__values__0__1__2=0), "JSON: visible.values[0][1][2]: expected true or false, got 0"),
        (broken(stages={}), "JSON: stages: expected a list, got {}"),
        (broken(stages__2=3), "JSON: stages[2]: expected an object, got 3"),
        (broken(stages__0__matrix=7), "JSON: stages[0].matrix: expected an object that describes a tensor, got 7"),
        (broken(stages__0__matrix__values=[]), "JSON: stages[0].matrix.values: expected a list of 1, got 0 values"),
        (
            broken(stages__0__matrix={"dtype": "float64", "shape": [0], "values": []}),
            "JSON: heads: expected 0, as the stage q has, got 1",
        ),
        (
            broken(stages__1__matrix={"dtype": "float64", "shape": [1, 2, 2], "values": [[[1, 2], [3, 4]]]}),
            "JSON: stages[1].matrix: expected the shape [1, 4, 2], or 1 head, got the shape [1, 2, 2]",
        ),
        (broken(stages__1__matrix__dtype="float32"), "JSON: stages[1].matrix: expected float64, got float32"),
        (
            broken(stages__0__matrix__values__0__3=[1.0]),
            "JSON: stages[0].matrix.values[0][3]: expected a list of 2, got 1 values",
        ),
        (
            broken(stages__0__matrix__values__0__3__1="5"),
            'JSON: stages[0].matrix.values[0][3][1]: expected a number, got "5"',
        ),
        (
            broken(stages__6__unmasked__values__0__3__1=True),
            "JSON: stages[6].unmasked.values[0][3][1]: expected a number, got true",
        ),
        (
            broken(stages__6=Gone),
            "JSON: stages: expected the stages q, k, v, scores, mask, masked, weights, output, got no weights",
        ),
        (
            broken(stages__0__key="k"),
            "JSON: stages: expected the stages q, k, v, scores, mask, masked, weights, output, got no q",
        ),
        (
            broken(stages__3__rows=["a", "b", "c", "d"]),
            "JSON: stages[3] (scores): expected labels as rows and key_labels as columns, got other names",
        ),
        (broken(mask="full()"), 'JSON: mask: expected an expression that agrees with `visible`, got "full()"'),
        (broken(mask=Gone), "JSON: mask: expected a string, got null"),
    ],
)
def test_what_is_not_a_trace_is_refused(text: Any, message: str):
    with pytest.raises(RearviewError) as caught:
        from_json(text)
    assert str(caught.value) == message


def test_a_repeated_stage_is_refused():
    fields = json.loads(restaurant().to_json())
    fields["stages"].append(fields["stages"][0])
    with pytest.raises(RearviewError, match=r"stages: expected each stage once, got q, k, v, .*, q$"):
        from_json(json.dumps(fields))


def test_a_number_beyond_float64_is_refused():
    text = to_json(explain(query=[[0.5]], key=[[1.0]], value=[[1.0]], mask=full())).replace("[0.5]", "[1e999]")
    with pytest.raises(RearviewError) as caught:
        from_json(text)
    assert str(caught.value) == "JSON: stages[0].matrix.values[0][0][0]: expected a number, got Infinity"
