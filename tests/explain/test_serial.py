"""JSON: what is read back is the same to the last bit, and what is wrong is said with its place."""

import json
import math
from typing import Any

import pytest
import torch

from rearview import RearviewError, Trace, causal, dense, explain, full, where
from rearview.explain.serial import from_json, to_json
from tests.explain.traces import TRACES, numbers, restaurant


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


def test_numbers_that_are_not_finite_or_not_quite_nothing():
    value = torch.tensor([[-0.0, 1e-320], [math.nan, math.inf], [0.1, 1 / 3]], dtype=torch.float64)
    trace = explain(query=numbers(3, 2), key=numbers(3, 2, seed=1), value=value)
    written = json.loads(trace.to_json())
    stage = next(stage for stage in written["stages"] if stage["key"] == "v")
    assert stage["matrix"] == [[[-0.0, 1e-320], ["nan", "inf"], [0.1, 1 / 3]]]
    mask = next(stage for stage in written["stages"] if stage["key"] == "mask")
    assert mask["matrix"][0][0] == [0.0, "-inf", "-inf"]
    again = from_json(trace.to_json())
    assert torch.equal(again["v"].matrix.isnan(), trace["v"].matrix.isnan())
    finite = trace["v"].matrix.nan_to_num(nan=7.0)
    assert same(again["v"].matrix.nan_to_num(nan=7.0), finite)


def test_the_file_is_json_that_a_person_can_read():
    text = restaurant().to_json()
    fields = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (fields["format"], fields["version"], fields["mask"]) == ("rearview-trace", 1, "causal()")
    assert "        [true, true, false, false]," in text.replace("      [", "        [").splitlines()
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
def test_a_mask_that_text_cannot_say_comes_back_as_what_is_visible(mask):
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
    """Stands for a field that is not there."""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "JSON: expected the JSON of a Trace, got Expecting value at line 1, column 1."),
        ('{"format": }', "JSON: expected the JSON of a Trace, got Expecting value at line 1, column 12."),
        ("[" * 100_000, "JSON: expected the JSON of a Trace, got lists that are nested too deeply."),
        ("[1, 2]", "JSON: expected an object {…}, got [1, 2]."),
        ("NaN", "JSON: expected numbers, and '-inf', 'inf', 'nan' as strings, got the bare word NaN."),
        (b"{}", "text: expected the JSON of a Trace as text, got bytes."),
        ("{}", "format: expected 'rearview-trace', got \"nothing\"."),
        (broken(format="other"), "format: expected 'rearview-trace', got \"other\"."),
        (broken(version=2), "version: expected 1, which this version of rearview reads, got 2."),
        (broken(version=True), "version: expected 1, which this version of rearview reads, got true."),
        (broken(labels=Gone), "labels: expected this field, got nothing."),
        (broken(stages=Gone), "stages: expected this field, got nothing."),
        (broken(stages__3__latex=Gone), "stages[3].latex: expected this field, got nothing."),
        (broken(stages__3__unmasked=Gone), "stages[3].unmasked: expected this field, got nothing."),
        (broken(title=7), "title: expected a text, got 7."),
        (broken(labels=["a", 1]), 'labels: expected a list of texts, got ["a", 1].'),
        (broken(labels=[]), "labels: expected a list of texts, got []."),
        (broken(reflexives=["x"]), "reflexives: expected 4 texts, got 1."),
        (broken(heads=0), "heads: expected a whole number of at least 1, got 0."),
        (broken(heads=True), "heads: expected a whole number of at least 1, got true."),
        (broken(scale="inf"), 'scale: expected a finite number, got "inf".'),
        (broken(scale=10**400), f"scale: expected a finite number, got {str(10**400)[:59]}…."),
        (broken(visible=[[[True]]]), "visible[0]: expected a list of 4, got 1."),
        (broken(visible__0__1__2=0), "visible[0][1][2]: expected true or false, got 0."),
        (broken(stages={}), "stages: expected a list, got {}."),
        (broken(stages__2=3), "stages[2]: expected an object {…}, got 3."),
        (broken(stages__0__matrix=[]), "stages[0].matrix: expected a list of 1, got 0."),
        (broken(stages__0__matrix=7), "stages[0].matrix: expected a list of 1, got 7."),
        (broken(stages__0__matrix__0__3=[1.0]), "stages[0].matrix[0][3]: expected a list of 2, got 1."),
        (
            broken(stages__0__matrix__0__3__1="5"),
            "stages[0].matrix[0][3][1]: expected a finite number, or one of '-inf', 'inf', 'nan', got \"5\".",
        ),
        (
            broken(stages__6__unmasked__0__3__1=True),
            "stages[6].unmasked[0][3][1]: expected a finite number, or one of '-inf', 'inf', 'nan', got true.",
        ),
        (
            broken(stages__6=Gone),
            "stages: expected the stages q, k, v, scores, mask, masked, weights, output, got no weights.",
        ),
        (
            broken(stages__0__key="k"),
            "stages: expected the stages q, k, v, scores, mask, masked, weights, output, got no q.",
        ),
        (
            broken(stages__3__rows=["a", "b", "c", "d"]),
            "stages[3] (scores): expected labels as rows and key_labels as columns, got others.",
        ),
        (broken(mask="full()"), 'mask: expected an expression that makes what `visible` says, got "full()".'),
    ],
)
def test_what_is_not_a_trace_is_refused(text: Any, message: str):
    with pytest.raises(RearviewError) as caught:
        from_json(text)
    assert str(caught.value) == message


def test_a_stage_may_not_come_twice():
    fields = json.loads(restaurant().to_json())
    fields["stages"].append(fields["stages"][0])
    with pytest.raises(RearviewError, match="stages: expected each stage once, got 'q' twice"):
        from_json(json.dumps(fields))


def test_a_number_beyond_float64_is_refused():
    text = to_json(explain(query=[[0.5]], key=[[1.0]], value=[[1.0]], mask=full())).replace("[0.5]", "[1e999]")
    with pytest.raises(RearviewError, match=r"stages\[0\]\.matrix\[0\]\[0\]\[0\]: expected a finite number"):
        from_json(text)
