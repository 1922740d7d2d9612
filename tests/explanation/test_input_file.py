"""Input files: what is read, and the errors for malformed files."""

import inspect
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from rearview import RearviewError, causal, documents, explain, window
from rearview.errors import BadFile, MissingExtra
from rearview.explanation.examples import I_LOVE
from rearview.explanation.input_file import FIELDS, LARGEST_FILE, explain_file, load

GOOD: dict[str, Any] = {"query": [[1, 0], [0, 1]], "key": [[1, 2], [3, 4]], "value": [[1.5], [2.5]]}


@pytest.fixture
def write(tmp_path: Path):
    def file(content: Any = None, name: str = "my.json", **changes: Any) -> Path:
        path = tmp_path / name
        if content is None:
            content = {**GOOD, **changes}
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    return file


@pytest.fixture
def savez(tmp_path: Path):
    def file(**arrays: Any) -> Path:
        path = tmp_path / "my.npz"
        numpy.savez(path, **arrays)
        return path

    return file


def refused(path: Path) -> str:
    """The message after the name of the file."""
    with pytest.raises(BadFile) as caught:
        explain_file(path)
    assert isinstance(caught.value, (RearviewError, ValueError))
    assert str(caught.value).startswith(f"{path}: ")
    return str(caught.value)[len(f"{path}: ") :]


# What is read.


def test_the_fields_are_the_arguments(write):
    path = write(
        {
            "x": [[1, 0], [0, 1], [1, 1]],
            "w_q": [[1, 0], [0, 1]],
            "w_k": [[0, 1], [1, 0]],
            "w_v": [[2, 0], [0, 2]],
            "w_o": [[1], [1]],
            "positions": "sinusoidal",
            "labels": "I love sushi",
            "features": ["a", "b"],
            "value_features": ["left"],
            "reflexives": ["me", "itself", "itself"],
            "num_heads": 2,
            "scale": 0.5,
            "mask": "causal() & window(2)",
            "title": "mine",
        }
    )
    trace = explain_file(path)
    assert (trace.title, trace.labels, trace.heads, trace.scale) == ("mine", ("I", "love", "sushi"), 2, 0.5)
    assert repr(trace.mask) == "causal() & window(2)"
    assert trace["x"].columns == ("a", "b")
    assert trace["v"].columns == ("left",)
    assert "projected" in trace
    assert trace.readings()[0].sentence == "I — 100.0 % me"
    again = explain(**load(path))
    assert torch.equal(again["projected"].matrix, trace["projected"].matrix)


def test_json_and_npz_give_the_same_trace(write, savez):
    arguments = {**I_LOVE.arguments, "labels": I_LOVE.labels, "title": "love", "mask": "window(2)", "num_heads": 1}
    one = explain_file(write(arguments))
    other = explain_file(savez(**{name: numpy.array(value) for name, value in arguments.items()}))
    own = explain(**{**arguments, "mask": window(2)})
    for trace in (one, other):
        assert (trace.title, trace.labels) == ("love", I_LOVE.labels)
        for stage, expected in zip(trace.stages, own.stages, strict=True):
            assert torch.equal(stage.matrix, expected.matrix)
            assert (stage.rows, stage.columns, stage.formula) == (expected.rows, expected.columns, expected.formula)


@pytest.mark.parametrize("dtype", ["float16", "float32", "longdouble", "int8", "uint64", ">f4"])
def test_any_kind_of_number(savez, dtype: str):
    trace = explain_file(savez(**{name: numpy.array(value).astype(dtype) for name, value in GOOD.items()}))
    expected = torch.tensor(GOOD["value"]).double()
    assert torch.equal(trace["v"].matrix[0], expected if "f" in dtype or dtype == "longdouble" else expected.floor())


def test_one_matrix_per_head(write):
    heads = [[[1, 0], [0, 1]], [[2, 0], [0, 2]]]
    trace = explain_file(write(query=heads, key=heads, value=heads))
    assert trace.heads == 2
    assert trace["q"].matrix.tolist() == heads


def test_a_mask_that_replaces_that_of_the_file(write):
    path = write(mask="full()")
    assert repr(explain_file(path).mask) == "full()"
    assert repr(explain_file(path, mask=causal()).mask) == "causal()"
    with pytest.raises(BadFile, match=r"my\.json: documents\(ids\): expected an id for each of the 2 positions"):
        explain_file(path, mask=documents([0]))


def test_a_saved_trace_is_read_back(tmp_path: Path):
    trace = I_LOVE.trace(mask=window(2))
    path = tmp_path / "saved.json"
    trace.save(path)
    again = explain_file(path)
    assert (again.title, repr(again.mask)) == (trace.title, "window(2)")
    assert torch.equal(again["output"].matrix, trace["output"].matrix)
    with pytest.raises(BadFile, match=r"saved\.json: a saved trace keeps the mask that it was made with"):
        explain_file(path, mask=causal())
    path.write_text(path.read_text(encoding="utf-8").replace('"heads": 1', '"heads": 0'), encoding="utf-8")
    assert refused(path) == "heads: expected 1, as the stage q has, got 0"


def test_a_byte_order_mark_and_other_letters(write):
    trace = explain_file(write("\ufeff" + json.dumps({**GOOD, "labels": ["寿司", "愛"]}, ensure_ascii=False)))
    assert trace.labels == ("寿司", "愛")


# What is refused, and where.


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{\n  "x": [[1, 0],\n        [0 1]]\n}',
            "line 3, column 12: this is not JSON: Expecting ',' delimiter\n          [0 1]]\n             ^",
        ),
        ("{'x': 1}", "line 1, column 2: this is not JSON: Expecting property name enclosed in double quotes\n  {'x'"),
        ('{"title": "a\tb"}', "line 1, column 13: this is not JSON: Invalid control character\n  "),
        ("", "line 1, column 1: this is not JSON: the file is empty\n"),
        ("[1, 2", "line 1, column 6: this is not JSON: Expecting ',' delimiter\n  [1, 2\n       ^"),
        ("[[1, 2]]", 'expected fields, as in {"x": ..., "w_q": ...}, got a list'),
        ("3", 'expected fields, as in {"x": ..., "w_q": ...}, got 3'),
        ('{"x": 1, "x": 2}', 'the field "x" is given twice'),
        ("[" * 100_000, "the lists are nested too deeply"),
        ('{"x": ' + "9" * 5000 + "}", "a number cannot be read: Exceeds the limit"),
        ('{"a": 1}\n\u2028\n]', "line 2, column 1: this is not JSON: Extra data\n  \\u2028\n  ^"),
        ("{}", "nothing to explain: expected x, w_q, w_k and w_v, or query, key and value"),
        ('{"x": 1, "w_q": 1, "w_v": 1}', "w_k is missing; x, w_q, w_k and w_v are given together"),
        ('{"query": 1}', "key is missing; query, key and value are given together"),
        ('{"x": 1, "query": 1}', "expected x, w_q, w_k and w_v, or query, key and value; got a mixture, x and query"),
    ],
)
def test_text_that_is_not_json(write, text: str, message: str):
    assert refused(write(text)).startswith(message)


def test_only_a_part_of_a_long_line_is_shown(write):
    said = refused(write('{"x": [[' + "1, " * 10_000 + "oops]]}"))
    place, shown, caret = said.splitlines()
    assert place == "line 1, column 30009: this is not JSON: Expecting value"
    assert len(shown) < 80
    assert shown[caret.index("^") :].startswith("oops")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qery": 1}, 'there is no field "qery"; did you mean query?\nFields: x, w_q, w_k, w_v, query, '),
        ({"Labels": 1}, 'there is no field "Labels"; did you mean labels?\n'),
        ({"wq": 1}, 'there is no field "wq"; did you mean w_q?\n'),
        ({"q": 1}, 'there is no field "q"; did you mean query?\n'),
        ({"tokens": 1}, 'there is no field "tokens"; did you mean labels?\n'),
        ({"zzz\x1b": 1}, 'there is no field "zzz\\u001b"\n'),
        ({"query": [[1, 0], [0]]}, "query[1]: expected 2 numbers, as in query[0], got 1"),
        ({"query": [[1, 0], [0, 1, 2]]}, "query[1]: expected 2 numbers, as in query[0], got 3"),
        ({"query": [1, 2]}, "query[0]: expected a list, got 1"),
        ({"query": [[1, 2], []]}, "query[1]: expected 2 numbers, as in query[0], got 0"),
        ({"query": []}, "query: expected a matrix, a list of rows, got an empty list"),
        ({"query": 3}, "query: expected a list, got 3"),
        ({"query": "causal()"}, 'query: expected a list, got "causal()"'),
        ({"query": {"rows": 2}}, "query: expected a list, got an object"),
        ({"query": [[1, 0], [0, "a"]]}, 'query[1][1]: expected a number, got "a"'),
        ({"query": [[1, None], [0, 1]]}, "query[0][1]: expected a number, got null"),
        ({"query": [[1, True], [0, 1]]}, "query[0][1]: expected a number, got true"),
        ({"query": [[1, [2]], [0, 1]]}, "query[0][1]: expected a number, got a list"),
        ({"query": [[1, float("nan")], [0, 1]]}, "query[0][1]: expected a number, got NaN"),
        ({"value": [[1], [float("inf")]]}, "value[1][0]: expected a number, got Infinity"),
        ({"value": [[1], [-float("inf")]]}, "value[1][0]: expected a number, got -Infinity"),
        ({"value": [[1], ["-inf"]]}, 'value[1][0]: expected a finite number, got "-inf"'),
        ({"value": [[1], [10**400]]}, "value[1][0]: expected a number, got 100000000000"),
        ({"key": [[[1, 2]], [[1, 2, 3]]]}, "key[1]: expected the shape [1, 2], as key[0] has, got [1, 3]"),
        ({"key": [[[1, 2]], [[1, "b"]]]}, 'key[1][0][1]: expected a number, got "b"'),
        ({"query": [[0, 0]] * 513}, "query: expected at most 512 rows, got 513. A trace is for reading; attend() and"),
        ({"value": [[0] * 4097] * 2}, "value: expected at most 4096 columns, got 4097."),
        ({"labels": 3}, "labels: expected a list, got 3"),
        ({"labels": ["a", 3]}, "labels[1]: expected a string, got 3"),
        ({"value_features": "a b"}, 'value_features: expected a list, got "a b"'),
        ({"title": ["a"]}, "title: expected a string, got a list"),
        ({"num_heads": "2"}, 'num_heads: expected an integer, got "2"'),
        ({"scale": [1]}, "scale: expected a number, got a list"),
        ({"mask": True}, "mask: expected a string, got true"),
        ({"mask": "causal() and full()"}, "mask: `and` asks each mask for one truth value; between masks write `&`\n"),
        ({"mask": "window(0)"}, "mask: window(n): expected an integer of at least 1, got 0."),
        # What explain() itself refuses.
        ({"labels": "one"}, "labels: expected 2 labels, one per row, got 'one'."),
        ({"value_features": ["a", "b"]}, "value_features: expected 1 names, one per column of value, got ['a', 'b']."),
        ({"features": ["a", "b"]}, "features: expected query_features, key_features and value_features when Q, K"),
        ({"key": [[1, 2]]}, "value: expected "),
        ({"positions": "rotatory"}, "positions: expected 'rotary' when Q, K and V are given, got 'rotatory'."),
        ({"num_heads": 3}, "query: expected columns that divide into 3 heads, got 2."),
        ({"num_heads": 1.5}, "num_heads: expected an integer, got 1.5"),
        ({"scale": None}, "scale: expected a number, got null"),
        ({"mask": "padding([1, 2])"}, "mask: expected a mask for batch 1, got padding([1, 2]), made for batch 2."),
    ],
)  # fmt: skip
def test_fields_that_are_wrong(write, changes: dict[str, Any], message: str):
    assert refused(write(**changes)).startswith(message)


def test_shapes_that_do_not_fit(write):
    unit = [[1, 0], [0, 1]]
    good = {"x": unit, "w_q": unit, "w_k": unit, "w_v": unit}
    said = refused(write({**good, "w_k": [[1, 0], [0, 1], [1, 1]]}))
    assert said == "w_k: expected 2 rows, one per column of x, got 3."
    said = refused(write({**good, "positions": [[0, 0, 0]] * 2}))
    assert said == "positions: expected a matrix of at least 2 rows and exactly 2 columns, as in X, got shape [2, 3]."
    assert refused(write({**good, "positions": 3})) == "positions: expected a list, got 3"
    assert refused(write({**good, "w_o": [[1]]})).startswith("w_o: expected ")


def test_missing_and_other_files(tmp_path: Path, write, monkeypatch: pytest.MonkeyPatch):
    assert refused(tmp_path / "absent.json") == "there is no such file"
    assert refused(tmp_path / "absent" / "my.npz") == "there is no such file"
    (tmp_path / "folder.json").mkdir()
    assert refused(tmp_path / "folder.json") == "this is a folder, not a file"
    for name, ending in (("my.csv", "'.csv'"), ("my", "'no ending'"), ("my.npy", "'.npy'")):
        assert refused(tmp_path / name) == f"expected a name that ends in .json or .npz, got {ending}"
    (tmp_path / "my.json").write_bytes(b'{"x":\n "\xff"}')
    assert refused(tmp_path / "my.json") == "line 2: this is not UTF-8 text (byte 8)"
    monkeypatch.setattr(sys.modules[load.__module__], "LARGEST_FILE", 2**20)
    assert refused(write(" " * 2**20 + "{}")) == "the file is larger than 1 MiB, the most that is read"
    assert LARGEST_FILE == 64 * 2**20


def test_a_file_that_may_not_be_read(write, monkeypatch: pytest.MonkeyPatch):
    def denied(*_: Any, **__: Any):
        raise PermissionError(13, "Permission denied")

    path = write()
    monkeypatch.setattr(Path, "open", denied)
    assert refused(path) == "the file cannot be read: Permission denied"


class Trap:
    """Unpickling it would run code."""

    def __reduce__(self):
        return (print, ("unpickled",))


def test_damaged_npz_files(tmp_path: Path, savez, monkeypatch: pytest.MonkeyPatch, capsys):
    arrays = {name: numpy.array(value) for name, value in GOOD.items()}
    nan = arrays["value"].copy()
    nan[1, 0] = numpy.nan
    assert refused(savez(**{**arrays, "value": nan})) == "value[1][0]: expected a number, got NaN"
    assert refused(savez(**{**arrays, "key": numpy.eye(2) * 1j})) == "key[0][0]: expected a number, got complex"
    assert refused(savez(**{**arrays, "key": numpy.float64(3)})) == "key: expected a list, got 3.0"
    assert refused(savez(**{**arrays, "key": numpy.eye(2) > 0})).endswith("expected a number, got true")
    assert refused(savez(**arrays, labels=numpy.array([b"a", b"b"]))) == "labels[0]: expected a string, got bytes"
    assert refused(savez(**arrays, keys=arrays["key"])).startswith('there is no field "keys"; did you mean key?')
    trap = numpy.array([Trap()], dtype=object)
    assert (
        refused(savez(**{**arrays, "key": trap})) == "key: expected an array of numbers or strings, got Python objects"
    )
    assert "unpickled" not in capsys.readouterr().out

    path = tmp_path / "my.npz"
    path.write_text("not an archive")
    not_one = "this is not a .npz file; numpy.savez(path, name=array, ...) writes one"
    assert refused(path) == not_one
    with path.open("wb") as file:
        numpy.save(file, numpy.eye(2))
    assert refused(path) == not_one
    whole = savez(**arrays).read_bytes()
    # A flipped bit inside the first array.
    path.write_bytes(whole[:200] + bytes([whole[200] ^ 1]) + whole[201:])
    assert refused(path).startswith("query: this cannot be read: Bad CRC-32")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("query.npy", b"\x93NUMPY\x01\x00")
    assert refused(path).startswith("query: this cannot be read: EOF")
    monkeypatch.setattr(sys.modules[load.__module__], "LARGEST_FILE", 2**20)
    numpy.savez_compressed(path, x=numpy.zeros((2000, 2000)))
    assert path.stat().st_size < 2**20
    assert refused(path) == "it unpacks to more than 1 MiB, the most that is read"


def test_npz_without_numpy(savez, monkeypatch: pytest.MonkeyPatch):
    path = savez(**{name: numpy.array(value) for name, value in GOOD.items()})
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(MissingExtra) as caught:
        explain_file(path)
    assert str(caught.value) == (
        "A .npz file needs the package 'numpy', which is not installed. "
        "Install it with: pip install numpy (the extra 'pictures' of rearview includes it)"
    )


def test_every_argument_of_explain_can_be_written_down():
    assert set(FIELDS) == set(inspect.signature(explain).parameters)
