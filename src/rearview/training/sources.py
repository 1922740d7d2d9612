"""Sources of text: a file, a folder, the standard input, or the reference text that comes with Python.

>>> texts = read_texts(None)
>>> len(texts) > 50, texts[0].name
(True, 'assert')
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rearview.errors import BadArgument, BadFile

STDIN = "-"


@dataclass(frozen=True)
class Document:
    """One text, and the name of its source."""

    name: str
    text: str


def read_texts(
    source: str | os.PathLike[str] | Sequence[str] | None, *, separator: str | None = None, encoding: str = "utf-8"
) -> list[Document]:
    """Read the documents of a source.

    Args:
        source: a file; a folder, in which every file, also in subfolders, is a document; several of them; "-" for the
            standard input; None for Python's reference text, in which every topic is a document.
        separator: a string that divides each text into documents.
        encoding: the encoding of the text.
    """
    if source is None:
        found = list(_topics())
    elif source == STDIN:
        found = [Document("standard input", _decoded(sys.stdin.buffer.read(), "standard input", encoding))]
    elif isinstance(source, (str, os.PathLike)):
        found = _files(Path(source), encoding)
    else:
        found = [document for each in source for document in _files(Path(each), encoding)]
    if separator is not None:
        if not separator:
            raise BadArgument("separator", expected="a string that is not empty", got="an empty string")
        found = [
            Document(f"{document.name}, part {n}", part)
            for document in found
            for n, part in enumerate(document.text.split(separator), start=1)
        ]
    found = [document for document in found if document.text]
    if not found:
        raise empty(source)
    return found


def empty(source: object) -> BadFile:
    """The error for a source without text."""
    return BadFile("standard input" if source == STDIN else source, "is empty: there is no text to train on.")


def _topics() -> Iterator[Document]:
    from pydoc_data.topics import topics

    for name, text in sorted(topics.items()):
        yield Document(name, text)


def _files(path: Path, encoding: str) -> list[Document]:
    if not _is_folder(path):
        return [Document(str(path), _decoded(_bytes(path), str(path), encoding))]
    return [
        Document(str(file.relative_to(path)), _decoded(_bytes(file), str(file), encoding)) for file in files_of(path)
    ]


def files_of(path: Path) -> list[Path]:
    """A file itself; the files of a folder and its subfolders, in order."""
    if not _is_folder(path):
        return [path]
    # Hidden files and folders (.git, .DS_Store) are not text to train on.
    files = sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise BadFile(path, "has no files.")
    return files


def _is_folder(path: Path) -> bool:
    """Whether this is a folder, and not a file. A pipe or a device is refused: texts are read more than once."""
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise BadFile(path, "is a pipe or a device, not a file. Use - to read the standard input.")
        return path.is_dir()
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}.") from error


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise BadFile(path, "does not exist.") from None
    except (OSError, ValueError, MemoryError) as error:
        # ValueError: a name with a zero byte.
        raise BadFile(
            path, f"cannot be read: {getattr(error, 'strerror', None) or str(error) or 'it is too large'}."
        ) from error


def _decoded(data: bytes, name: str, encoding: str) -> str:
    try:
        text = data.decode(encoding)
    except LookupError:
        raise BadArgument("encoding", expected="an encoding that Python supports", got=repr(encoding)) from None
    except UnicodeDecodeError as error:
        raise not_decodable(name, error) from error
    except UnicodeError as error:
        raise BadFile(name, f"is not {encoding}: {error}.") from error
    if "\0" in text:
        raise not_text(name, text.index("\0"))
    # The model should not learn the line ends of Windows, nor a byte order mark.
    return text.removeprefix("\ufeff").replace("\r\n", "\n")


def not_decodable(name: object, error: UnicodeDecodeError, before: int = 0) -> BadFile:
    """The error for bytes that are not in the encoding, the first of them after `before` others."""
    place = f"byte {before + error.start} (0x{error.object[error.start]:02x})"
    has_mark = not before and error.object[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\0" in error.object and not has_mark:
        why = f"is not text: {place} is not {error.encoding}, and it has zero bytes. Remove it from the folder."
        return BadFile(name, why)
    other = "utf-16" if has_mark else "latin-1"
    why = (
        f"is not {error.encoding}: {place} cannot be decoded. If it has another encoding, name it: --encoding {other}."
    )
    return BadFile(name, why)


def not_text(name: object, character: int) -> BadFile:
    """The error for a text with a zero character."""
    return BadFile(name, f"is not text: character {character} is a zero. Remove it from the folder.")
