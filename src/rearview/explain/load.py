"""Your own matrices from a .json or .npz file, as arguments of explain(). What is malformed is named with its place.

    {"x": [[1, 0], [0, 1]], "w_q": [[1, 0], [0, 1]], "w_k": ..., "w_v": ..., "labels": "I love", "mask": "causal()"}

>>> import pathlib, tempfile
>>> path = pathlib.Path(tempfile.mkdtemp(), "my.json")
>>> _ = path.write_text('{"query": [[1], [1]], "key": [[0], [0]], "value": [[2], [4]], "labels": "I love"}')
>>> explain_file(path)["output"].matrix.tolist()
[[[2.0], [3.0]]]
"""

from __future__ import annotations

import difflib
import json
import math
import os
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from rearview.errors import BadFile, RearviewError
from rearview.explain.build import explain
from rearview.explain.serial import FORMAT
from rearview.explain.trace import Trace
from rearview.masks import Mask
from rearview.masks.labels import cut, printable, width
from rearview.masks.parse import parse

# A trace is for reading: every pair has its cell in every stage.
MOST_POSITIONS, MOST_FEATURES = 512, 4096
LARGEST_FILE = 64 * 2**20
# Characters of a line that an error shows on either side of the place it means.
CONTEXT = 36

INPUT, PROJECTED = ("x", "w_q", "w_k", "w_v"), ("query", "key", "value")
# The sizes that each matrix may have at most.
SIZES = {
    **dict.fromkeys(("x", "positions", *PROJECTED), (MOST_POSITIONS, MOST_FEATURES)),
    **dict.fromkeys(("w_q", "w_k", "w_v", "w_o"), (MOST_FEATURES, MOST_FEATURES)),
}
WORDS = ("labels", "key_labels", "features", "query_features", "key_features", "value_features", "reflexives")
FIELDS = (*INPUT, *PROJECTED, "w_o", "positions", "mask", *WORDS, "num_heads", "scale", "title")
# Names that others use, too short or too different to be found by their spelling.
ALSO_CALLED = {"q": "query", "k": "key", "v": "value", "p": "positions", "tokens": "labels", "heads": "num_heads"}


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The arguments of `explain` that a .json or .npz file holds: `explain(**load("my.json"))`."""
    return _arguments(path, _fields(Path(path)))


def explain_file(path: str | os.PathLike[str], *, mask: Mask | None = None) -> Trace:
    """Every step of the attention in a file, `mask` in place of its own; or the Trace that `Trace.save` wrote there."""
    given = _fields(Path(path))
    if given.get("format") == FORMAT and mask is not None:
        raise BadFile(path, "a saved trace keeps the mask that it was made with")
    try:
        if given.get("format") == FORMAT:
            return Trace.from_json(Path(path).read_text(encoding="utf-8-sig"))
        arguments = _arguments(path, given)
        return explain(**(arguments if mask is None else {**arguments, "mask": mask}))
    except BadFile:
        raise
    except RearviewError as error:
        raise BadFile(path, str(error)) from error


def _arguments(path: Any, given: dict[str, Any]) -> dict[str, Any]:
    for name in given:
        if name not in FIELDS:
            close = ALSO_CALLED.get(name.lower()) or next(iter(difflib.get_close_matches(name.lower(), FIELDS, 1)), "")
            hint = f"; did you mean {close}?" if close else ""
            raise BadFile(path, f"there is no field {_shown(name)}{hint}\nFields: {', '.join(FIELDS)}")
    _check_complete(path, given)
    return {name: _value(path, name, value) for name, value in given.items()}


def _fields(path: Path) -> dict[str, Any]:
    ending = path.suffix.lower()
    if ending not in (".json", ".npz"):
        raise BadFile(path, f"expected a name that ends in .json or .npz, got {ending or 'no ending'!r}")
    try:
        if path.is_dir():
            raise BadFile(path, "this is a folder, not a file")
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
            if len(data) > LARGEST_FILE:
                raise BadFile(path, f"the file is larger than {LARGEST_FILE // 2**20} MiB, the most that is read")
            if ending == ".json":
                return _of_json(path, data)
            file.seek(0)
            return _of_npz(path, file)
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except OSError as error:
        raise BadFile(path, f"the file cannot be read: {error.strerror or error}") from error


def _of_json(path: Path, data: bytes) -> dict[str, Any]:
    try:
        # Editors on Windows like to begin with a mark.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadFile(path, f"line {line}: this is not UTF-8 text (byte {error.start})") from None
    try:
        document = json.loads(text, object_pairs_hook=lambda pairs: _object(path, pairs))
    except json.JSONDecodeError as error:
        line, column = text.split("\n")[error.lineno - 1].replace("\t", " "), error.colno - 1
        before, after = (
            printable(part) for part in (line[max(0, column - CONTEXT) : column], line[column : column + CONTEXT])
        )
        place = f"line {error.lineno}, column {error.colno}"
        why = "this is not JSON: " + (error.msg.removesuffix(" at") if text.strip() else "the file is empty")
        raise BadFile(path, f"{place}: {why}\n  {before}{after}\n  {' ' * width(before)}^") from None
    except RecursionError:
        raise BadFile(path, "the lists are nested too deeply") from None
    except ValueError as error:
        if isinstance(error, RearviewError):
            raise
        # A whole number of thousands of digits.
        raise BadFile(path, f"a number cannot be read: {error}") from None
    if not isinstance(document, dict):
        raise BadFile(path, f'expected fields, as in {{"x": ..., "w_q": ...}}, got {_shown(document)}')
    return document


def _object(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise BadFile(path, f"the field {_shown(name)} is given twice")
    return dict(pairs)


def _of_npz(path: Path, file: Any) -> dict[str, Any]:
    try:
        import numpy
    except ImportError as error:
        advice = "Install it with: pip install numpy; or write the numbers as .json"
        raise BadFile(path, f"a .npz file needs the package 'numpy', which is not installed. {advice}") from error
    if not zipfile.is_zipfile(file):
        raise BadFile(path, "this is not a .npz file; numpy.savez(path, x=..., w_q=...) writes one")
    file.seek(0)
    found = {}
    name = ""
    try:
        with zipfile.ZipFile(file) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > LARGEST_FILE:
                raise BadFile(path, f"it unpacks to more than {LARGEST_FILE // 2**20} MiB, the most that is read")
        file.seek(0)
        with numpy.load(file, allow_pickle=False) as arrays:
            for name in arrays.files:
                array = arrays[name]
                if isinstance(array, numpy.ndarray):
                    # Wider floats have no counterpart in Python.
                    array = (array.astype("f8") if array.dtype.kind == "f" else array).tolist()
                found[name] = array
    except (ValueError, MemoryError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        if isinstance(error, RearviewError):
            raise
        if "pickle" in str(error):
            raise BadFile(path, f"{name}: expected an array of numbers or texts, got Python objects") from error
        raise BadFile(path, f"{name + ': ' if name else ''}this cannot be read: {error}") from error
    return found


def _check_complete(path: Any, given: dict[str, Any]) -> None:
    from_input, from_projected = [n for n in INPUT if n in given], [n for n in PROJECTED if n in given]
    if from_input and from_projected:
        came = f"{from_input[0]} and {from_projected[0]}"
        raise BadFile(path, f"expected x, w_q, w_k and w_v, or query, key and value; got a mixture, {came}")
    if not from_input and not from_projected:
        raise BadFile(path, "nothing to explain: expected x, w_q, w_k and w_v, or query, key and value")
    wanted = INPUT if from_input else PROJECTED
    if missing := [name for name in wanted if name not in given]:
        there = f"{', '.join(wanted[:-1])} and {wanted[-1]}"
        raise BadFile(path, f"{missing[0]} is missing; {there} come together")


def _value(path: Any, name: str, value: Any) -> Any:
    if name == "mask":
        if not isinstance(value, str):
            raise BadFile(path, f'mask: expected an expression such as "causal() & window(3)", got {_shown(value)}')
        try:
            return parse(value)
        except RearviewError as error:
            raise BadFile(path, f"mask: {error}") from error
    if name == "title":
        return _text(path, name, value)
    if name in WORDS:
        # A text of labels is split at spaces by explain().
        if isinstance(value, str) and name.endswith("labels"):
            return value
        if not isinstance(value, list):
            raise BadFile(path, f"{name}: expected a list of texts, got {_shown(value)}")
        return [_text(path, f"{name}, entry {n}", each) for n, each in enumerate(value, 1)]
    if name in SIZES and not (name == "positions" and isinstance(value, str)):
        return _Matrix(path, name).read(value)
    if name in ("num_heads", "scale") and not isinstance(value, (int, float)):
        raise BadFile(path, f"{name}: expected a number, got {_shown(value)}")
    return value


def _text(path: Any, place: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadFile(path, f"{place}: expected a text, got {_shown(value)}")
    return value


class _Matrix:
    """Reads rows of numbers; places are counted from 1, as a reader of the file counts."""

    def __init__(self, path: Any, name: str):
        self.path, self.name = path, name
        self.most_rows, self.most_columns = SIZES[name]

    def read(self, value: Any) -> Tensor:
        # Q, K and V may come as one matrix a head.
        deep = self.name in PROJECTED and isinstance(value, list) and value and isinstance(value[0], list)
        if deep and value[0] and isinstance(value[0][0], list):
            heads = [self.rows(head, f"{self.name}, head {n}") for n, head in enumerate(value, 1)]
            for n, head in enumerate(heads, 1):
                came, first = (f"{len(each)} x {len(each[0])}" for each in (head, heads[0]))
                if came != first:
                    self.refuse(f"{self.name}, head {n}", f"expected {first} numbers, as in head 1, got {came}")
            return torch.tensor(heads, dtype=torch.float64)
        return torch.tensor(self.rows(value, self.name), dtype=torch.float64)

    def rows(self, value: Any, place: str) -> list[list[float]]:
        if not isinstance(value, list) or not value:
            self.refuse(place, f"expected a matrix, a list of rows, got {_shown(value)}")
        self.check_size(place, len(value), "rows", self.most_rows)
        rows = []
        for n, row in enumerate(value, 1):
            here = f"{place}, row {n}"
            if not isinstance(row, list) or not row:
                self.refuse(here, f"expected a list of numbers, got {_shown(row)}")
            self.check_size(here, len(row), "numbers", self.most_columns)
            if rows and len(row) != len(rows[0]):
                self.refuse(here, f"expected {len(rows[0])} numbers, as in row 1, got {len(row)}")
            rows.append([self.number(cell, here, column) for column, cell in enumerate(row, 1)])
        return rows

    def number(self, cell: Any, row: str, column: int) -> float:
        if isinstance(cell, bool) or not isinstance(cell, (int, float)):
            self.refuse(f"{row}, column {column}", f"expected a number, got {_shown(cell)}")
        try:
            number = float(cell)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            came = "NaN" if math.isnan(number) else "one beyond float64" if isinstance(cell, int) else str(number)
            self.refuse(f"{row}, column {column}", f"expected a finite number, got {came}")
        return number

    def check_size(self, place: str, count: int, what: str, most: int) -> None:
        if count > most:
            advice = "A trace is for reading; attend() and weights() take any size."
            self.refuse(place, f"expected at most {most} {what}, got {count}. {advice}")

    def refuse(self, place: str, why: str) -> NoReturn:
        raise BadFile(self.path, f"{place}: {why}")


def _shown(value: Any) -> str:
    """A value in a message: as JSON writes it, and short."""
    match value:
        case list() if value:
            return "a list"
        case dict() if value:
            return "an object"
        case str() | list() | dict() | bool() | None | int() | float():
            return cut(printable(json.dumps(value, ensure_ascii=False)), CONTEXT)
    return type(value).__name__
