"""A damaged file raises one sentence that names the file, never an exception of a library."""

import io
import json
import random
import zipfile
from pathlib import Path

import numpy
import pytest

from rearview.codec import parse_json, read_archive, read_bytes, write_archive
from rearview.errors import BadFile

MOST = 2**20


def npy(shape: str, descr: str = "'<f4'") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header


def archive(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, data in entries.items():
            file.writestr(f"{name}.npy", data)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        archive(a=npy(f"({10**30},)")),
        archive(a=npy("(-1,)")),
        archive(a=npy("(2,)")),
        archive(a=npy("(2")),
        archive(a=npy("(2,)", "'<f999'")),
        archive(a=npy("(2,)", "__import__('os')")),
        archive(a=npy("(2,)", "'|O'")),
    ],
)
def test_wrong_headers_are_refused(tmp_path: Path, data: bytes):
    path = tmp_path / "a.npz"
    path.write_bytes(data)
    with pytest.raises(BadFile) as caught:
        read_archive(path, most=MOST)
    assert str(caught.value).startswith(f"{path}: a: ")


def test_any_flipped_byte_is_read_or_refused(tmp_path: Path):
    rng = random.Random(0)
    whole = write_archive({"a": numpy.arange(20.0), "b": numpy.array("text")})
    path = tmp_path / "a.npz"
    refused: list[str] = []
    for _ in range(300):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        path.write_bytes(data)
        try:
            read_archive(path, most=MOST)
        except BadFile as error:
            refused.append(str(error))
    assert len(refused) > 100
    assert all(message.startswith(f"{path}: ") for message in refused)


def test_a_file_of_many_fields_is_read_once_through():
    # Comparing every field with every other would take minutes.
    fields = {f"field {n}": n for n in range(200_000)}
    assert parse_json(json.dumps(fields), "x") == fields
    with pytest.raises(BadFile) as caught:
        parse_json('{"a": 1, "b": 2, "a": 3}', "x")
    assert str(caught.value) == 'x: the field "a" is given twice'


def test_a_file_is_no_larger_than_allowed(tmp_path: Path):
    path = tmp_path / "a.npz"
    path.write_bytes(b" " * (MOST + 1))
    with pytest.raises(BadFile, match=r"the file is larger than 1 MiB, the most that is read$"):
        read_bytes(path, most=MOST)
    path.write_bytes(write_archive({"a": numpy.zeros(MOST)}))
    with pytest.raises(BadFile, match=r"it unpacks to more than 1 MiB, the most that is read$"):
        read_archive(path, most=MOST)
