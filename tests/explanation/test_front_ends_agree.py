"""All front ends show the numbers of the Trace: each output is parsed and compared with the Trace.

Terminal, JSON, LaTeX, SVG and the page are tested; a PNG is the figure of the SVG. The properties of the numbers are
checked on the parsed output, not on the Trace.
"""

import csv
import io
import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from rearview import Trace, explain
from rearview.drawing.cells import drawn, printable
from rearview.drawing.text import NumberRole
from rearview.explanation.numbers import digits_for, shown, signed
from rearview.explanation.picture import picture
from rearview.explanation.trace import Stage
from tests.explanation.test_latex import read
from tests.explanation.traces import HEADS, TRACES, to_the_sink

Rows = Counter[tuple[str, tuple[str, ...]]]
SVG = "{http://www.w3.org/2000/svg}"

each_head = pytest.mark.parametrize(("name", "head"), HEADS)


def rows_of(stage: Stage, matrix: Tensor, write=shown) -> list[tuple[str, tuple[str, ...]]]:
    """Each row with its label, as a front end should show it."""
    digits = digits_for(matrix)
    return [
        (drawn(r), tuple(write(x, digits) for x in row)) for r, row in zip(stage.rows, matrix.tolist(), strict=True)
    ]


def expected(stage: Stage, head: int, *, beside_masked: bool) -> Rows:
    """With the mask; where it differs without it and the difference."""
    found = rows_of(stage, stage.of_head(head))
    difference = stage.difference(head)
    if stage.key == "masked" and beside_masked:
        found += rows_of(stage, stage.of_head(head, masked=False))
    if stage.key in ("weights", "output", "projected") and difference is not None:
        found += rows_of(stage, stage.of_head(head, masked=False)) + rows_of(stage, difference, signed)
    return Counter(found)


# The terminal.


def read_text(trace: Trace, head: int) -> dict[str, Rows]:
    """The tables under each formula, from the pieces of the drawing: a label, then its numbers."""
    cells = {*get_args(NumberRole), "heard", "blocked"}
    formulas = {stage.formula: stage.key for stage in trace.stages}
    found: dict[str, Rows] = {}
    key, label, row = "", "", []
    for piece in trace.show(head).pieces:
        if piece.role in cells:
            row.append(piece.text.strip())
            continue
        if row:
            found[key][label, tuple(row)] += 1
            row = []
        if piece.role == "title" and piece.text in formulas:
            key = formulas[piece.text]
            found[key] = Counter()
        if piece.role == "label" and piece.text.strip():
            label = piece.text.strip()
    return found


@each_head
def test_the_terminal(name: str, head: int):
    trace = TRACES[name]()
    assert read_text(trace, head) == {s.key: expected(s, head, beside_masked=True) for s in trace.stages}


# LaTeX.


def read_latex(trace: Trace, head: int) -> list[Rows]:
    """The rows of the displays, those of one stage together."""
    sections = trace.to_latex(head).split(r"\subsection*{$")[1:]
    found = []
    for section in sections:
        rows: Rows = Counter()
        for matrix in re.findall(r"\\bordermatrix\{\n(.*?) \\cr\n\}", section, re.DOTALL):
            for line in matrix.split(" \\cr\n")[1:]:
                # An escaped & is part of a label.
                label, *cells = re.split(r"(?<!\\) & ", line)
                label = read(label.removeprefix(r"\text{").removesuffix("}"))
                rows[label, tuple(cell.replace(r"\infty", "∞") for cell in cells)] += 1
        found.append(rows)
    return found


@each_head
def test_latex(name: str, head: int):
    trace = TRACES[name]()
    assert read_latex(trace, head) == [expected(stage, head, beside_masked=False) for stage in trace.stages]


# CSV.


@pytest.mark.parametrize("name", TRACES)
def test_csv(name: str):
    trace = TRACES[name]()
    lines = list(csv.DictReader(io.StringIO(trace.to_csv())))
    found = {}
    for line in lines:
        place = (line["stage"], int(line["head"]), int(line["row"]), int(line["column"]))
        found[place] = (float(line["value"]), float(line["without_mask"]))
        rows, columns = trace[line["stage"]].rows, trace[line["stage"]].columns
        assert line["row_label"].removeprefix("'") == printable(rows[place[2]])
        assert line["column_label"].removeprefix("'") == printable(columns[place[3]])
    wanted = {}
    for stage in trace.stages:
        without = stage.matrix if stage.unmasked is None else stage.unmasked
        for head in range(max(len(stage.matrix), len(without))):
            masked, unmasked = stage.of_head(head), stage.of_head(head, masked=stage.unmasked is None)
            for i, j in itertools.product(*map(range, masked.shape)):
                wanted[stage.key, head, i, j] = (float(masked[i, j]), float(unmasked[i, j]))
    assert found == wanted
    assert len(lines) == len(wanted)


def test_a_label_is_no_formula_for_a_spreadsheet():
    unit = torch.eye(2)
    text = explain(query=unit, key=unit, value=unit, labels=["=1+1", '-x, "y"']).to_csv()
    assert "weights,0,0,'=1+1,0,'=1+1,1.0,0.6697615493266569\n" in text
    assert '\'-x, ""y""' in text


# The picture.


@each_head
def test_svg(name: str, head: int):
    trace = TRACES[name]()
    root = ElementTree.fromstring(picture(trace, ".svg", head=head))
    groups = {group.get("id"): group for group in root.iter(f"{SVG}g")}
    for key, masked in [
        ("scores", True),
        ("mask", True),
        *[(k, m) for k in ("weights", "output") for m in (True, False)],
    ]:
        stage = trace[key]
        numbers = [cell for _, row in rows_of(stage, stage.of_head(head, masked=masked)) for cell in row]
        written = [text.text for text in groups[key if masked else f"{key}-without"].iter(f"{SVG}text")]
        assert written[: len(numbers)] == numbers
        assert written[len(numbers) :] == [drawn(word) for word in (*stage.rows, *stage.columns)]


# JSON and the page, which hold every number in full.


def tensor(matrix: Any) -> Tensor:
    return torch.tensor([[float(x) for x in row] for row in matrix], dtype=torch.float64)


def read_json(trace: Trace) -> Iterator[tuple[str, int, bool, Tensor]]:
    for stage in json.loads(trace.to_json())["stages"]:
        for field, masked in (("matrix", True), ("unmasked", False)):
            for head, matrix in enumerate(stage[field]["values"] if stage[field] else []):
                yield stage["key"], head, masked, tensor(matrix)


def read_page(trace: Trace) -> Iterator[tuple[str, int, bool, Tensor]]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', trace.to_html(), re.DOTALL)
    assert found
    data = json.loads(found[1])
    for stage in data["stages"]:
        for field, masked in (("with", True), ("without", False)):
            for head, place in enumerate(stage[field]["matrix"] if stage[field] else []):
                yield stage["key"], head, masked, tensor(data["matrices"][place])


FILES = {"json": read_json, "page": read_page}
each_file = pytest.mark.parametrize("read_file", FILES.values(), ids=FILES)
each_trace = pytest.mark.parametrize("name", TRACES)


@each_file
@each_trace
def test_json_and_the_page_hold_every_number(name: str, read_file):
    trace = TRACES[name]()
    found = {(key, head, masked): matrix for key, head, masked, matrix in read_file(trace)}
    matrices = [(stage, True, stage.matrix) for stage in trace.stages]
    matrices += [(stage, False, stage.unmasked) for stage in trace.stages if stage.unmasked is not None]
    wanted = {(stage.key, head, masked): m for stage, masked, heads in matrices for head, m in enumerate(heads)}
    assert found.keys() == wanted.keys()
    for place, matrix in wanted.items():
        assert torch.equal(found[place].view(torch.int64), matrix.contiguous().view(torch.int64)), place
        assert [[shown(x) for x in row] for row in found[place].tolist()] == [
            [shown(x) for x in row] for row in matrix.tolist()
        ]


@each_file
@each_trace
def test_the_written_numbers_have_the_properties_of_attention(name: str, read_file):
    trace = TRACES[name]()
    found = {(key, head, masked): matrix for key, head, masked, matrix in read_file(trace)}
    for head in range(trace.heads):
        weights, mask = found["weights", head, True], found["mask", head if trace.visible.shape[0] > 1 else 0, True]
        forbidden = mask == -math.inf
        hears = ~forbidden.all(-1)
        assert forbidden.any() or name == "heads_of_their_own"
        assert (weights[forbidden] == 0).all()
        assert (weights[~forbidden] > 0).all()
        to_sink, open_to_sink = to_the_sink(trace)[head], to_the_sink(trace, masked=False)[head]
        assert_close(weights.sum(-1) + to_sink, (hears | ("sinks" in trace)).double(), rtol=0, atol=1e-14)
        assert_close(found["output", head, True], weights @ found["v", head, True], rtol=0, atol=1e-14)
        assert (found["output", head, True][~hears] == 0).all()
        open_weights = found["weights", head, False]
        total = torch.ones(len(weights), dtype=torch.float64)
        assert_close(open_weights.sum(-1) + open_to_sink, total, rtol=0, atol=1e-14)
        assert_close(found["output", head, False], open_weights @ found["v", head, True], rtol=0, atol=1e-14)
        assert torch.equal(found["masked", head, True].isinf(), forbidden)
        assert torch.equal(found["masked", head, True][~forbidden], found["scores", head, True][~forbidden])


@each_head
def test_all_have_the_same_sentences(name: str, head: int):
    trace = TRACES[name]()
    readings = [reading.sentence for reading in trace.readings(head)]
    said = [*readings, *(received.sentence for received in trace.received(head)), *trace.remarks(head)]
    text = " ".join(trace.show(head).split())
    latex = [read(line.removeprefix(r"\item ")) for line in trace.to_latex(head).splitlines() if r"\item" in line]
    picture_text = "".join(ElementTree.fromstring(picture(trace, ".svg", head=head)).itertext())
    aloud = json.loads(trace.to_json())["read_aloud"][head]
    assert [*aloud["readings"], *aloud["received"], *aloud["remarks"]] == said == latex
    for sentence in said:
        assert " ".join(sentence.split()) in text
    flat = " ".join(picture_text.split())
    assert all(" ".join(sentence.split()) in flat for sentence in readings)
    page = trace.to_html()
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert [reading["sentence"] for reading in data["spoken"][head]["with"]] == readings
    assert data["spoken"][head]["remarks"] == list(trace.remarks(head))
