"""Text from files, folders, standard input and Python itself, and errors for what is not text."""

import io
import sys
from pathlib import Path

import pytest

from rearview.errors import BadArgument, BadFile
from rearview.training import read_texts


def test_a_file_is_a_document(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo é\n".encode())
    (document,) = read_texts(tmp_path / "a.txt")
    assert document.text == "one\ntwo é\n"
    assert document.name.endswith("a.txt")


def test_a_folder_is_its_files_in_order(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for name, text in {"b.txt": "second", "a.md": "first", "deep/c.txt": "third", "empty.txt": ""}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "blob").write_bytes(b"\xff\0")
    found = read_texts(tmp_path)
    assert [(document.name, document.text) for document in found] == [
        ("a.md", "first"),
        ("b.txt", "second"),
        (str(Path("deep/c.txt")), "third"),
    ]


def test_the_standard_input(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("piped é".encode())))
    assert [document.text for document in read_texts("-")] == ["piped é"]


def test_pythons_own_text():
    texts = read_texts(None)
    assert sum(len(document.text) for document in texts) > 300_000
    assert [document.name for document in texts] == sorted(document.name for document in texts)


def test_a_separator_cuts_a_file_into_documents(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one---two------three")
    assert [document.text for document in read_texts(tmp_path / "a.txt", separator="---")] == ["one", "two", "three"]


def test_another_encoding(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes("café".encode("latin-1"))
    assert read_texts(tmp_path / "a.txt", encoding="latin-1")[0].text == "café"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"good \xe9 bad", r"is not utf-8: byte 5 \(0xe9\) cannot be decoded.* name it: --encoding latin-1"),
        (b"PNG\0\xff", r"is not text: byte 4 \(0xff\) is not utf-8, and it has zero bytes"),
        (b"ab\0cd", "is not text: character 2 is a zero"),
        (b"", "is empty: there is no text to train on"),
    ],
)
def test_files_that_are_not_text_are_named(content: bytes, why: str, tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=why) as error:
        read_texts(path)
    assert str(path) in str(error.value)
    # The same inside a folder names the file, not the folder; an empty file there is passed over.
    (tmp_path / "b.txt").write_text("fine")
    if content:
        with pytest.raises(BadFile, match=r"a\.txt"):
            read_texts(tmp_path)
    else:
        assert [document.text for document in read_texts(tmp_path)] == ["fine"]


def test_files_that_cannot_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BadFile, match=r"nowhere: does not exist\."):
        read_texts(tmp_path / "nowhere")
    with pytest.raises(BadFile, match="has no files\\."):
        read_texts(tmp_path)

    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.txt").write_text("x")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(BadFile, match=r"secret\.txt: cannot be read: Permission denied\."):
        read_texts(tmp_path / "secret.txt")


def test_invalid_options_are_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(BadArgument, match="encoding: expected an encoding that Python supports, got 'utf-99'"):
        read_texts(tmp_path / "a.txt", encoding="utf-99")
    with pytest.raises(BadArgument, match="separator: expected a string that is not empty, got an empty string"):
        read_texts(tmp_path / "a.txt", separator="")
