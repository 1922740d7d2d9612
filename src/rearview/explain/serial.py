"""A Trace as JSON, every number in full, and back.

>>> import torch
>>> from rearview import Trace, explain
>>> trace = explain(query=torch.eye(2), key=torch.eye(2), value=torch.eye(2), labels=["I", "love"])
>>> torch.equal(Trace.from_json(trace.to_json())["weights"].matrix, trace["weights"].matrix)
True

A number is written so that it is read back as the same float64; JSON has no word for what is not finite, so that is a
string: "-inf", "inf", "nan". `read_aloud` is for readers of the file: a Trace reads its own weights, so it is not
read back.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor

from rearview.errors import BadArgument, RearviewError
from rearview.explain.trace import Stage, Trace
from rearview.masks import Mask, dense
from rearview.masks.frame import Frame
from rearview.masks.parse import parse

FORMAT, VERSION = "rearview-trace", 1
NOT_FINITE = ("-inf", "inf", "nan")
# What the front ends draw; a Trace without one of them is none.
NEEDED = ("q", "k", "v", "scores", "mask", "masked", "weights", "output")


def to_json(trace: Trace) -> str:
    """See `Trace.to_json`."""
    fields = {
        "format": FORMAT,
        "version": VERSION,
        "title": trace.title,
        "mask": repr(trace.mask),
        "labels": trace.labels,
        "key_labels": trace.key_labels,
        "reflexives": trace.reflexives,
        "heads": trace.heads,
        "scale": trace.scale,
        "visible": trace.visible.tolist(),
        "stages": [
            {
                "key": stage.key,
                "symbol": stage.symbol,
                "formula": stage.formula,
                "latex": stage.latex,
                "sentence": stage.sentence,
                "rows": stage.rows,
                "columns": stage.columns,
                "matrix": _numbers(stage.matrix),
                "unmasked": None if stage.unmasked is None else _numbers(stage.unmasked),
            }
            for stage in trace.stages
        ],
        "read_aloud": [
            {
                "readings": [reading.sentence for reading in trace.readings(head)],
                "received": [received.sentence for received in trace.received(head)],
                "remarks": trace.remarks(head),
            }
            for head in range(trace.heads)
        ],
    }
    text = "".join(_written(fields, ""))
    # Half a character (a lone surrogate) cannot be encoded; JSON can name it.
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def _numbers(matrix: Tensor) -> list[list[list[float | str]]]:
    return [[[x if math.isfinite(x) else str(x) for x in row] for row in head] for head in matrix.tolist()]


def _written(value: Any, indent: str) -> Iterator[str]:
    """JSON with one line a row: neither one endless line nor one number a line."""
    inner = f"{indent}  "
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if not any(isinstance(item, (dict, list, tuple)) for item in items) and not isinstance(value, dict):
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    yield opening
    for n, (key, item) in enumerate(zip(keys, items, strict=True)):
        yield f"{',' if n else ''}\n{inner}{key}"
        yield from _written(item, inner)
    yield f"\n{indent}{closing}"


def from_json(text: str) -> Trace:
    """See `Trace.from_json`. What is wrong is said with its place: `stages[3].matrix[0][1][2]`."""
    whole = _Object(_parsed(text), "")
    if whole.fields.get("format") != FORMAT:
        _refuse("format", repr(FORMAT), _brief(whole.fields.get("format", "nothing")))
    if whole.fields.get("version") != VERSION or isinstance(whole.fields["version"], bool):
        _refuse("version", f"{VERSION}, which this version of rearview reads", _brief(whole.fields.get("version")))
    labels, key_labels = whole.words("labels"), whole.words("key_labels")
    heads = whole.get("heads")
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1:
        _refuse("heads", "a whole number of at least 1", _brief(heads))
    visible = _tensor(whole.get("visible"), "visible", heads, len(labels), len(key_labels), _bool, torch.bool)
    given = whole.get("stages")
    if not isinstance(given, list):
        _refuse("stages", "a list", _brief(given))
    stages = tuple(_stage(_Object(stage, f"stages[{n}]"), heads) for n, stage in enumerate(given))
    _check_stages(stages, labels, key_labels)
    return Trace(
        title=whole.text("title"),
        mask=_mask(whole.text("mask"), visible),
        labels=labels,
        key_labels=key_labels,
        reflexives=whole.words("reflexives", len(labels)),
        heads=heads,
        scale=_finite(whole.get("scale"), "scale"),
        visible=visible,
        stages=stages,
    )


def _parsed(text: Any) -> Any:
    def refuse(constant: str) -> NoReturn:
        _refuse("JSON", f"numbers, and {', '.join(map(repr, NOT_FINITE))} as strings", f"the bare word {constant}")

    if not isinstance(text, str):
        _refuse("text", "the JSON of a Trace as text", type(text).__name__)
    try:
        return json.loads(text, parse_constant=refuse)
    except json.JSONDecodeError as error:
        _refuse("JSON", "the JSON of a Trace", f"{error.msg} at line {error.lineno}, column {error.colno}")
    except RearviewError:
        raise
    except RecursionError:
        _refuse("JSON", "the JSON of a Trace", "lists that are nested too deeply")
    except ValueError as error:
        _refuse("JSON", "the JSON of a Trace", str(error))


class _Object:
    """The fields of a JSON object, and its place in the file for errors."""

    def __init__(self, value: Any, place: str):
        if not isinstance(value, dict):
            _refuse(place or "JSON", "an object {…}", _brief(value))
        self.fields: dict[str, Any] = value
        self.place = place

    def at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def get(self, name: str) -> Any:
        if name not in self.fields:
            _refuse(self.at(name), "this field", "nothing")
        return self.fields[name]

    def text(self, name: str) -> str:
        value = self.get(name)
        if not isinstance(value, str):
            _refuse(self.at(name), "a text", _brief(value))
        return value

    def words(self, name: str, count: int | None = None) -> tuple[str, ...]:
        value = self.get(name)
        if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
            _refuse(self.at(name), "a list of texts", _brief(value))
        if count is not None and len(value) != count:
            _refuse(self.at(name), f"{count} texts", str(len(value)))
        return tuple(value)


def _stage(stage: _Object, heads: int) -> Stage:
    rows, columns = stage.words("rows"), stage.words("columns")

    def matrix(name: str) -> Tensor:
        return _tensor(stage.get(name), stage.at(name), heads, len(rows), len(columns), _number, torch.float64)

    return Stage(
        key=stage.text("key"),
        symbol=stage.text("symbol"),
        formula=stage.text("formula"),
        latex=stage.text("latex"),
        sentence=stage.text("sentence"),
        matrix=matrix("matrix"),
        rows=rows,
        columns=columns,
        unmasked=None if stage.get("unmasked") is None else matrix("unmasked"),
    )


def _check_stages(stages: tuple[Stage, ...], labels: tuple[str, ...], key_labels: tuple[str, ...]) -> None:
    keys = [stage.key for stage in stages]
    if missing := [key for key in NEEDED if key not in keys]:
        _refuse("stages", f"the stages {', '.join(NEEDED)}", f"no {', '.join(missing)}")
    if twice := [key for key in keys if keys.count(key) > 1]:
        _refuse("stages", "each stage once", f"{twice[0]!r} twice")
    for n, stage in enumerate(stages):
        if stage.key in ("scores", "mask", "masked", "weights") and (stage.rows, stage.columns) != (labels, key_labels):
            _refuse(f"stages[{n}] ({stage.key})", "labels as rows and key_labels as columns", "others")


def _tensor(value: Any, place: str, heads: int, rows: int, columns: int, read: Any, dtype: torch.dtype) -> Tensor:
    """[heads, rows, columns], or one head for all; every list and element checked."""
    outer = _list(value, place, (1, heads))
    matrix = [
        [
            [read(x, f"{place}[{h}][{r}][{c}]") for c, x in enumerate(_list(row, f"{place}[{h}][{r}]", (columns,)))]
            for r, row in enumerate(_list(head, f"{place}[{h}]", (rows,)))
        ]
        for h, head in enumerate(outer)
    ]
    return torch.tensor(matrix, dtype=dtype, device="cpu")


def _list(value: Any, place: str, lengths: tuple[int, ...]) -> list[Any]:
    expected = f"a list of {' or '.join(str(length) for length in sorted(set(lengths)))}"
    if not isinstance(value, list):
        _refuse(place, expected, _brief(value))
    if len(value) not in lengths:
        _refuse(place, expected, str(len(value)))
    return value


def _number(value: Any, place: str) -> float:
    if isinstance(value, str) and value in NOT_FINITE:
        return float(value)
    return _finite(value, place, f", or one of {', '.join(map(repr, NOT_FINITE))}")


def _finite(value: Any, place: str, also: str = "") -> float:
    try:
        number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    # 1e999 is read as an infinity.
    if not math.isfinite(number):
        _refuse(place, f"a finite number{also}", _brief(value))
    return number


def _bool(value: Any, place: str) -> bool:
    if not isinstance(value, bool):
        _refuse(place, "true or false", _brief(value))
    return value


def _mask(expression: str, visible: Tensor) -> Mask:
    try:
        mask = parse(expression)
        seen = mask.visible_in(Frame.of(*visible.shape[1:]), torch.device("cpu"))
    except RearviewError:
        # A rule of one's own or a large tensor does not say all of itself; what is visible does.
        return dense(visible.unsqueeze(0))
    if (
        seen.shape[0] != 1
        or seen.shape[1] not in (1, visible.shape[0])
        or not torch.equal(seen[0].expand_as(visible), visible)
    ):
        _refuse("mask", "an expression that makes what `visible` says", _brief(expression))
    return mask


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:59]}…"


def _refuse(place: str, expected: str, came: str) -> NoReturn:
    raise BadArgument(place, expected=expected, came=came)
