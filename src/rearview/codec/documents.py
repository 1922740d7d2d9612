"""The two containers of plain data: JSON text, and .npz archives of arrays. Errors name the file and the place in it.

>>> parse_json('{"x": [1, 2}', "my.json")
Traceback (most recent call last):
rearview.errors.BadFile: my.json: line 1, column 12: this is not JSON: Expecting ',' delimiter
  {"x": [1, 2}
             ^
"""

from __future__ import annotations

import io
import json
import os
import re
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rearview.codec.values import SHOWN, brief
from rearview.drawing.cells import printable, width
from rearview.errors import BadFile, MissingExtra, RearviewError

if TYPE_CHECKING:
    import numpy

# What numpy and zipfile raise for a damaged archive.
DAMAGE = (
    *(ValueError, TypeError, AttributeError, KeyError, IndexError, EOFError, OSError, MemoryError, OverflowError),
    *(NotImplementedError, RuntimeError, SyntaxError, zipfile.BadZipFile, zlib.error, struct.error),
    tokenize.TokenError,
)


def json_text(value: object) -> str:
    """JSON with a line per field and per row of numbers.

    >>> print(json_text({"rows": [[1, 2], [3, 4]]}), end="")
    {
      "rows": [
        [1, 2],
        [3, 4]
      ]
    }
    """
    text = "".join(_written(value, ""))
    # Half a character (a lone surrogate) cannot be encoded; JSON can escape it.
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def _written(value: Any, indent: str) -> Iterator[str]:
    inner = f"{indent}  "
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    if not any(isinstance(item, (dict, list, tuple)) for item in items) and not (isinstance(value, dict) and value):
        yield json.dumps(value, ensure_ascii=False, allow_nan=False)
        return
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    yield opening
    for n, (key, item) in enumerate(zip(keys, items, strict=True)):
        yield f"{',' if n else ''}\n{inner}{key}"
        yield from _written(item, inner)
    yield f"\n{indent}{closing}"


def parse_json(text: str | bytes, source: object) -> object:
    """The data of a JSON text."""
    if not isinstance(text, (str, bytes)):
        raise BadFile(source, f"expected JSON text, got {type(text).__name__}")
    if isinstance(text, bytes):
        text = _decoded(text, source)
    try:
        return json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, source))
    except json.JSONDecodeError as error:
        line, column = text.split("\n")[error.lineno - 1].replace("\t", " "), error.colno - 1
        parts = (line[max(0, column - SHOWN) : column], line[column : column + SHOWN])
        before, after = (printable(part) for part in parts)
        place = f"line {error.lineno}, column {error.colno}"
        why = "this is not JSON: " + (error.msg.removesuffix(" at") if text.strip() else "the file is empty")
        raise BadFile(source, f"{place}: {why}\n  {before}{after}\n  {' ' * width(before)}^") from None
    except RecursionError:
        raise BadFile(source, "the lists are nested too deeply") from None
    except RearviewError:
        raise
    except ValueError as error:
        # An integer of thousands of digits.
        raise BadFile(source, f"a number cannot be read: {error}") from None


def _decoded(data: bytes, source: object) -> str:
    try:
        # Editors on Windows may write a byte order mark.
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadFile(source, f"line {line}: this is not UTF-8 text (byte {error.start})") from None


def _object(pairs: list[tuple[str, Any]], source: object) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise BadFile(source, f"the field {brief(name)} is given twice")
        found[name] = value
    return found


def check_regular(path: Path) -> None:
    """Refuse a folder, a pipe and a device before they are opened. A missing file is left to whoever opens it.

    >>> check_regular(Path("/"))
    Traceback (most recent call last):
    rearview.errors.BadFile: /: this is a folder, not a file
    """
    try:
        if path.is_dir():
            raise BadFile(path, "this is a folder, not a file")
        if path.exists() and not path.is_file():
            # To open a named pipe would wait for whoever writes to it; a device may never end.
            raise BadFile(path, "this is a pipe or a device, not a file")
    except OSError as error:
        # Such as a name that is too long.
        raise BadFile(path, f"the file cannot be read: {error.strerror}") from error


def read_bytes(path: Path, *, most: int) -> bytes:
    """The content of a regular file of at most this many bytes."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            # Python takes the memory for all that it is asked to read.
            size = os.fstat(file.fileno()).st_size
            data = None if size > most else file.read(size + 1)
    except FileNotFoundError:
        raise BadFile(path, "there is no such file") from None
    except (OSError, ValueError) as error:
        # ValueError: a name with a zero byte.
        raise BadFile(path, f"the file cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if data is None or len(data) > most:
        raise BadFile(path, f"the file is larger than {most // 2**20} MiB, the most that is read")
    return data


def read_archive(path: Path, *, most: int) -> dict[str, numpy.ndarray]:
    """The arrays of a .npz file of at most `most` bytes, packed and unpacked. Python objects are refused."""
    np = _numpy("A .npz file")
    data = io.BytesIO(read_bytes(path, most=most))
    if not zipfile.is_zipfile(data):
        raise BadFile(path, "this is not a .npz file; numpy.savez(path, name=array, ...) writes one")
    found: dict[str, numpy.ndarray] = {}
    name = ""
    try:
        with zipfile.ZipFile(data) as archive:
            if sum(entry.file_size for entry in archive.infolist()) > most:
                raise BadFile(path, f"it unpacks to more than {most // 2**20} MiB, the most that is read")
        data.seek(0)
        with np.load(data, allow_pickle=False) as arrays:
            for name in arrays.files:
                found[name] = np.asarray(arrays[name])
    except RearviewError:
        raise
    except DAMAGE as error:
        place = f"{printable(name)}: " if name else ""
        if "pickle" in str(error):
            raise BadFile(path, f"{place}expected an array of numbers or strings, got Python objects") from error
        raise BadFile(path, f"{place}this cannot be read: {printable(str(error))}") from error
    return found


def write_archive(arrays: Mapping[str, numpy.ndarray]) -> bytes:
    """A compressed .npz file of these arrays."""
    buffer = io.BytesIO()
    # As a mapping of keywords, which numpy's own types take for its other parameters.
    keywords: Mapping[str, Any] = arrays
    _numpy("A .npz file").savez_compressed(buffer, **keywords)
    return buffer.getvalue()


def _numpy(needed_for: str) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise MissingExtra("numpy", extra="pictures", needed_for=needed_for) from error
    return numpy
