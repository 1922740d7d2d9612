"""Text files that are read in pieces, so that a text may be larger than memory.

>>> import tempfile
>>> from pathlib import Path
>>> path = Path(tempfile.mkdtemp(), "a.txt")
>>> _ = path.write_text("one two---three")
>>> list(TextFiles.of(str(path), separator="---").pieces())
[TextPiece(text='one two', starts=True), TextPiece(text='three', starts=True)]
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rearview.errors import BadArgument, BadFile
from rearview.text.pieces import cut, pieces_of
from rearview.training.sources import files_of, not_decodable, not_text

# The bytes that are read at once.
BLOCK = 1 << 22

# Called with a file and a block of its bytes.
Read = Callable[[Path, bytes], None]


def nothing(path: Path, data: bytes) -> None:
    """Leave a block as it is."""


@dataclass(frozen=True)
class TextPiece:
    """A part of a document; `starts` if it is the first."""

    text: str
    starts: bool


@dataclass(frozen=True)
class TextFiles:
    """Files, each a document or, with a separator, several.

    Pieces end where no tokenizer that is trained here joins characters (see `rearview.text.pieces`), so the tokens of
    the pieces are the tokens of the document.
    """

    paths: tuple[Path, ...]
    separator: str | None = None
    encoding: str = "utf-8"

    @classmethod
    def of(cls, sources: str | Sequence[str], *, separator: str | None = None, encoding: str = "utf-8") -> TextFiles:
        """The files of files and folders, in order; see `read_texts`."""
        if separator == "":
            raise BadArgument("separator", expected="a string that is not empty", got="an empty string")
        try:
            # Encodings such as rot13 are not of bytes.
            b"".decode(encoding)
            codecs.getincrementaldecoder(encoding)
        except (LookupError, UnicodeError):
            raise BadArgument("encoding", expected="an encoding that Python supports", got=repr(encoding)) from None
        sources = [sources] if isinstance(sources, str) else sources
        return cls(tuple(path for source in sources for path in files_of(Path(source))), separator, encoding)

    @property
    def size(self) -> int:
        """The number of bytes of all files."""
        return sum(_size(path) for path in self.paths)

    def pieces(self, read: Read = nothing) -> Iterator[TextPiece]:
        """All documents in pieces; empty documents are left out. `read` gets every block of every file."""
        for path in self.paths:
            yield from self._documents(_blocks(path, self.encoding, read))

    def _documents(self, blocks: Iterator[str]) -> Iterator[TextPiece]:
        separator, held, starts = self.separator, "", True
        # How much of what is held has been searched for a place to cut.
        searched = 0
        for block in blocks:
            held += block
            if separator is not None:
                *documents, held = held.split(separator)
                for document in documents:
                    searched = 0
                    for text in pieces_of(document):
                        yield TextPiece(text, starts)
                        starts = False
                    starts = True
                # The separator may be divided between two blocks.
                keep = len(separator) - 1
                texts, rest = cut(held[: len(held) - keep], searched=searched)
                held = rest + held[len(held) - keep :]
            else:
                texts, rest = cut(held, searched=searched)
                held = rest
            searched = len(rest)
            for text in texts:
                yield TextPiece(text, starts)
                starts = False
        for text in pieces_of(held):
            yield TextPiece(text, starts)
            starts = False


def checksum_of_file(path: Path, read: Read = nothing) -> str:
    """The SHA-256 checksum of a file, which is read in blocks."""
    digest = hashlib.sha256()
    for block in _bytes(path, read):
        digest.update(block)
    return digest.hexdigest()


def _blocks(path: Path, encoding: str, read: Read) -> Iterator[str]:
    """The text of a file in blocks, without a byte order mark and with the line ends of Unix."""
    decoder = codecs.getincrementaldecoder(encoding)()
    consumed, characters, held, first = 0, 0, "", True
    for data in _with_end(_bytes(path, read)):
        pending = len(decoder.getstate()[0])
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise not_decodable(path, error, consumed - pending) from error
        except UnicodeError as error:
            raise BadFile(path, f"is not {encoding}: {error}.") from error
        consumed += len(data)
        if "\0" in text:
            raise not_text(path, characters + text.index("\0"))
        characters += len(text)
        if first and text:
            text, first = text.removeprefix("\ufeff"), False
        text = held + text
        # A line end may be divided between two blocks.
        held = "\r" if data and text.endswith("\r") else ""
        if text := text.removesuffix(held).replace("\r\n", "\n"):
            yield text


def _with_end(blocks: Iterator[bytes]) -> Iterator[bytes]:
    yield from blocks
    yield b""


def _bytes(path: Path, read: Read) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                read(path, block)
                yield block
    except FileNotFoundError:
        raise BadFile(path, "does not exist.") from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}.") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        raise BadFile(path, "does not exist.") from None
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}.") from error
