"""Matrices from a .json or .npz file, as the arguments of explain(). An error names the file and the place in it.

    {"x": [[1, 0], [0, 1]], "w_q": [[1, 0], [0, 1]], "w_k": ..., "w_v": ..., "labels": "I love", "mask": "causal()"}

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp(), "my.json")
>>> _ = path.write_text('{"query": [[1], [1]], "key": [[0], [0]], "value": [[2], [4]], "labels": "I love"}')
>>> explain_file(path)["output"].matrix.tolist()
[[[2.0], [3.0]]]
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rearview.codec import Reader, brief, parse_json, read_archive, read_bytes
from rearview.errors import BadFile, RearviewError
from rearview.explanation.explainer import explain
from rearview.explanation.serial import FORMAT, from_json
from rearview.explanation.trace import Trace
from rearview.masks import Mask
from rearview.masks.parser import parse

# A trace is for reading: every pair has its cell in every stage.
MOST_POSITIONS, MOST_FEATURES = 512, 4096
LARGEST_FILE = 64 * 2**20

INPUT, PROJECTED = ("x", "w_q", "w_k", "w_v"), ("query", "key", "value")
# The largest number of rows and columns of each matrix.
SIZES = {
    **dict.fromkeys(("x", "positions", *PROJECTED), (MOST_POSITIONS, MOST_FEATURES)),
    **dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), (MOST_FEATURES, MOST_FEATURES)),
}
WORDS = ("labels", "key_labels", "features", "query_features", "key_features", "value_features", "reflexives")
FIELDS = (*INPUT, *PROJECTED, "w_o", "positions", "mask", *WORDS, "num_heads", "scale", "sinks", "title")
# Other common names, too short or too different to be found by their spelling.
ALSO_CALLED = {"q": "query", "k": "key", "v": "value", "p": "positions", "tokens": "labels", "heads": "num_heads"}


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `explain` that a .json or .npz file holds: `explain(**load("my.json"))`."""
    return _arguments(Reader(path), _fields(Path(path)))


def explain_file(path: str | os.PathLike[str], *, mask: Mask | None = None) -> Trace:
    """The Trace of the matrices in a file, or the Trace that `Trace.save` wrote. `mask` replaces the file's mask."""
    given = _fields(Path(path))
    if given.get("format") == FORMAT:
        if mask is not None:
            raise BadFile(path, "a saved trace keeps the mask that it was made with")
        return from_json(read_bytes(Path(path), most=LARGEST_FILE), path)
    arguments = _arguments(Reader(path), given)
    try:
        return explain(**(arguments if mask is None else {**arguments, "mask": mask}))
    except RearviewError as error:
        raise BadFile(path, str(error)) from error


def _fields(path: Path) -> dict[str, Any]:
    match path.suffix.lower():
        case ".json":
            fields = parse_json(read_bytes(path, most=LARGEST_FILE), path)
        case ".npz":
            # Floats wider than float64 have no counterpart in Python.
            arrays = read_archive(path, most=LARGEST_FILE).items()
            fields = {name: (a.astype("f8") if a.dtype.kind == "f" else a).tolist() for name, a in arrays}
        case ending:
            raise BadFile(path, f"expected a name that ends in .json or .npz, got {ending or 'no ending'!r}")
    if not isinstance(fields, dict):
        raise BadFile(path, f'expected fields, as in {{"x": ..., "w_q": ...}}, got {brief(fields)}')
    return fields


def _arguments(reader: Reader, given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in FIELDS:
            close = ALSO_CALLED.get(name.lower()) or next(iter(difflib.get_close_matches(name.lower(), FIELDS, 1)), "")
            hint = f"; did you mean {close}?" if close else ""
            raise BadFile(reader.source, f"there is no field {brief(name)}{hint}\nFields: {', '.join(FIELDS)}")
    _check_complete(reader.source, given)
    return {name: _value(reader, name, value) for name, value in given.items()}


def _check_complete(path: object, given: dict[str, Any]) -> None:
    from_input, from_projected = [n for n in INPUT if n in given], [n for n in PROJECTED if n in given]
    if from_input and from_projected:
        got = f"{from_input[0]} and {from_projected[0]}"
        raise BadFile(path, f"expected x, w_q, w_k and w_v, or query, key and value; got a mixture, {got}")
    if not from_input and not from_projected:
        raise BadFile(path, "nothing to explain: expected x, w_q, w_k and w_v, or query, key and value")
    wanted = INPUT if from_input else PROJECTED
    if missing := [name for name in wanted if name not in given]:
        together = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
        raise BadFile(path, f"{missing[0]} is missing; {together} are given together")


def _value(reader: Reader, name: str, value: Any) -> Any:
    if name == "mask":
        if isinstance(value, list):
            advice = 'A matrix in which 1 means heard is written "dense([[1, 0], [1, 1]])".'
            reader.refuse(name, "a mask expression", f"a list. {advice}")
        try:
            return parse(reader.read(str, value, name))
        except RearviewError as error:
            raise error if isinstance(error, BadFile) else BadFile(reader.source, f"mask: {error}") from error
    if name == "title" or (isinstance(value, str) and name in ("labels", "key_labels", "positions")):
        return reader.read(str, value, name)
    if name in WORDS:
        return reader.read(list[str], value, name)
    if name in SIZES:
        return _matrix(reader, name, value)
    if name == "sinks":
        return reader.read(list[float], value, name)
    return reader.read(int if name == "num_heads" else float, value, name)


def _matrix(reader: Reader, name: str, value: Any) -> Tensor:
    # Q, K and V may be given as one matrix per head.
    by_head = name in PROJECTED and _is_list(value) and _is_list(value[0]) and _is_list(value[0][0])
    heads = value if by_head else [value]
    places = [f"{name}[{n}]" for n in range(len(heads))] if by_head else [name]
    matrices = [_rows(reader, place, head, *SIZES[name]) for place, head in zip(places, heads, strict=True)]
    for place, matrix in zip(places, matrices, strict=True):
        if matrix.shape != matrices[0].shape:
            reader.refuse(place, f"the shape {list(matrices[0].shape)}, as {places[0]} has", list(matrix.shape))
    return torch.stack(matrices) if by_head else matrices[0]


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0


def _rows(reader: Reader, place: str, value: Any, most_rows: int, most_columns: int) -> Tensor:
    rows = reader.read(list[list[float]], value, place)
    if not rows or not rows[0]:
        reader.refuse(place, "a matrix, a list of rows", "an empty list")
    for what, count, most in (("rows", len(rows), most_rows), ("columns", len(rows[0]), most_columns)):
        if count > most:
            advice = "A trace is for reading; attend() and weights() take any size."
            reader.refuse(place, f"at most {most} {what}", f"{count}. {advice}")
    for n, row in enumerate(rows):
        if len(row) != len(rows[0]):
            reader.refuse(f"{place}[{n}]", f"{len(rows[0])} numbers, as in {place}[0]", len(row))
    matrix = torch.tensor(rows, dtype=torch.float64)
    if not (finite := matrix.isfinite()).all():
        row, column = (~finite).nonzero()[0].tolist()
        reader.refuse(f"{place}[{row}][{column}]", "a finite number", brief(value[row][column]))
    return matrix
