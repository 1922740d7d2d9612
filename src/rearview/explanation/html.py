"""A Trace as one page, in one file that needs no network, with every number in full.

>>> import torch
>>> from rearview import explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "love"])
>>> to_html(trace).startswith("<!doctype html>")
True

The scripts draw the numbers of the Trace. They compute only the terms of the chosen cell, which they show next to it.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from rearview.drawing.cells import drawn
from rearview.drawing.html import framed, seal
from rearview.explanation.trace import Stage, Trace
from rearview.explanation.words import DIFFERENCE, UNTITLED, without_mask

SCRIPTS = ("trace.js", "table.js", "cell.js", "paper.js", "page.js")


def to_html(trace: Trace) -> str:
    """The whole page as text; see `Trace.to_html`."""
    return seal("rearview.explanation", scripts=SCRIPTS, title=trace.title or UNTITLED, data=page_data(trace))


def to_notebook(trace: Trace) -> str:
    """The page in an iframe, for a notebook."""
    height = min(900, 620 + 34 * min(len(trace.labels), 10))
    return framed(to_html(trace), title=trace.title or UNTITLED, height=height)


def page_data(trace: Trace) -> dict[str, Any]:
    """The data of the page. Equal matrices are written once; stages refer to them by index in `matrices`."""
    matrices: list[Tensor] = []
    stages = [_stage(stage, matrices) for stage in trace.stages]
    return {
        "title": trace.title or UNTITLED,
        "mask": repr(trace.mask),
        "labels": _labels(trace.labels),
        "keyLabels": _labels(trace.key_labels),
        "heads": trace.heads,
        "scale": trace.scale,
        "visible": [["".join("01"[seen] for seen in row) for row in head] for head in trace.visible.int().tolist()],
        "stages": stages,
        "matrices": [_numbers(matrix) for matrix in matrices],
        "spoken": [_spoken(trace, head) for head in range(trace.heads)],
    }


def _stage(stage: Stage, matrices: list[Tensor]) -> dict[str, Any]:
    without_formula, without_sentence = without_mask(stage)
    difference = DIFFERENCE.get(stage.key) if stage.unmasked is not None else None
    return {
        "key": stage.key,
        "symbol": stage.symbol,
        "rows": _labels(stage.rows),
        "columns": _labels(stage.columns),
        "with": {"formula": stage.formula, "sentence": stage.sentence, "matrix": _places(stage.matrix, matrices)},
        "without": None
        if stage.unmasked is None
        else {
            "formula": without_formula or stage.formula,
            "sentence": without_sentence or stage.sentence,
            "matrix": _places(stage.unmasked, matrices),
        },
        "difference": None if difference is None else {"formula": difference[0], "sentence": difference[1]},
    }


def _labels(labels: tuple[str, ...]) -> list[str]:
    return [drawn(label) or "(empty)" for label in labels]


def _places(heads: Tensor, matrices: list[Tensor]) -> list[int]:
    """The index of each head's matrix in `matrices`, after adding the new ones."""
    found = []
    for matrix in heads.detach().double().cpu():
        # Bit for bit, so that -0.0 is not 0.0.
        bits = matrix.contiguous().view(torch.int64)
        equal = (n for n, known in enumerate(matrices) if torch.equal(known.view(torch.int64), bits))
        place = next(equal, None)
        if place is None:
            place = len(matrices)
            matrices.append(matrix.contiguous())
        found.append(place)
    return found


def _numbers(matrix: Tensor) -> list[list[float | str]]:
    # JSON has no literal for infinity; the page reads Python's words.
    return [[number if math.isfinite(number) else str(number) for number in row] for row in matrix.tolist()]


def _spoken(trace: Trace, head: int) -> dict[str, Any]:
    def rows(masked: bool) -> list[dict[str, Any]]:
        return [
            {
                "sentence": reading.sentence,
                "heard": len(reading.heard),
                "onlyItself": reading.only_itself,
                "nothing": reading.nothing,
            }
            for reading in trace.readings(head, masked=masked)
        ]

    return {
        "with": rows(True),
        "without": rows(False),
        "received": [asdict(received) for received in trace.received(head)],
        "remarks": trace.remarks(head),
    }
