"""A Trace as JSON, every number in full, and back.

>>> import torch
>>> from rearview import Trace, explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "love"])
>>> torch.equal(Trace.from_json(trace.to_json())["weights"].matrix, trace["weights"].matrix)
True

A number is written so that it is read back as the same float64. The mask is written as its expression. `read_aloud` is
for people who read the file: a Trace derives these sentences from its weights, so they are not read back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rearview.codec import Reader, brief, json_text, parse_json, plain
from rearview.errors import RearviewError
from rearview.explanation.trace import Stage, Trace
from rearview.masks import Mask, dense
from rearview.masks.frame import Frame
from rearview.masks.parser import parse

FORMAT, VERSION = "rearview-trace", 2
# The stages that every front end draws.
NEEDED = ("q", "k", "v", "scores", "mask", "masked", "weights", "output")


def to_json(trace: Trace) -> str:
    """See `Trace.to_json`."""
    aloud = [
        {
            "readings": [reading.sentence for reading in trace.readings(head)],
            "received": [received.sentence for received in trace.received(head)],
            "remarks": trace.remarks(head),
        }
        for head in range(trace.heads)
    ]
    fields = {**vars(trace), "mask": repr(trace.mask), "read_aloud": aloud}
    return json_text({"format": FORMAT, "version": VERSION, **plain(fields)})


def from_json(text: str | bytes, source: object = "JSON") -> Trace:
    """See `Trace.from_json`; `source` names the text in errors."""
    reader = Reader(source)
    data = reader.header(parse_json(text, source), FORMAT, VERSION)
    visible = reader.read(Tensor, data.get("visible"), "visible")
    mask = _mask(reader, reader.read(str, data.get("mask"), "mask"), visible)
    trace = reader.read(Trace, data, given={"mask": mask, "visible": visible})
    _check(reader, trace)
    return trace


def _check(reader: Reader, trace: Trace) -> None:
    """Refuse a Trace whose parts do not fit together."""
    queries, keys = len(trace.labels), len(trace.key_labels)
    if not math.isfinite(trace.scale):
        reader.refuse("scale", "a finite number", trace.scale)
    if len(trace.reflexives) != queries:
        reader.refuse("reflexives", f"{queries} strings", len(trace.reflexives))
    stages = [stage.key for stage in trace.stages]
    if missing := [key for key in NEEDED if key not in stages]:
        reader.refuse("stages", f"the stages {', '.join(NEEDED)}", f"no {', '.join(missing)}")
    if len(set(stages)) != len(stages):
        reader.refuse("stages", "each stage once", ", ".join(stages))
    if trace.heads != trace["q"].heads:
        reader.refuse("heads", f"{trace['q'].heads}, as the stage q has", trace.heads)
    _check_matrix(reader, trace.visible, torch.bool, "visible", (trace.heads, queries, keys))
    for n, stage in enumerate(trace.stages):
        _check_stage(reader, trace, stage, f"stages[{n}]")


def _check_stage(reader: Reader, trace: Trace, stage: Stage, place: str) -> None:
    pairs = stage.key in ("scores", "mask", "masked", "weights")
    if pairs and (stage.rows, stage.columns) != (trace.labels, trace.key_labels):
        reader.refuse(f"{place} ({stage.key})", "labels as rows and key_labels as columns", "other names")
    shape = (trace.heads, len(stage.rows), len(stage.columns))
    _check_matrix(reader, stage.matrix, torch.float64, f"{place}.matrix", shape)
    if stage.unmasked is not None:
        _check_matrix(reader, stage.unmasked, torch.float64, f"{place}.unmasked", shape)


def _check_matrix(reader: Reader, matrix: Tensor, dtype: torch.dtype, place: str, shape: tuple[int, int, int]) -> None:
    """[heads, rows, columns], or one matrix for all heads."""
    if matrix.dtype != dtype:
        reader.refuse(place, str(dtype).removeprefix("torch."), str(matrix.dtype).removeprefix("torch."))
    # An empty matrix has nothing to draw.
    if tuple(matrix.shape) not in (shape, (1, *shape[1:])) or 0 in matrix.shape:
        reader.refuse(place, f"the shape {list(shape)}, or 1 head", f"the shape {list(matrix.shape)}")


def _mask(reader: Reader, expression: str, visible: Tensor) -> Mask:
    if visible.ndim != 3 or visible.dtype != torch.bool:
        reader.refuse("visible", "booleans in the shape [heads, queries, keys]", f"the shape {list(visible.shape)}")
    try:
        mask = parse(expression)
        seen = mask.visible_in(Frame.of(*visible.shape[1:]), torch.device("cpu"))
    except RearviewError:
        # The text of a `where` rule or of a large tensor is not complete; `visible` is.
        return dense(visible.unsqueeze(0))
    if (
        seen.shape[0] != 1
        or seen.shape[1] not in (1, visible.shape[0])
        or not torch.equal(seen[0].expand_as(visible), visible)
    ):
        reader.refuse("mask", "an expression that agrees with `visible`", brief(expression))
    return mask
