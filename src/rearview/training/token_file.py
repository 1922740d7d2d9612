"""The tokens of text files in a file that is mapped into memory: made once, and read where they are needed.

tokens/<name of the files, the settings and the tokenizer>/
  tokens.bin      the tokens, two bytes each if the vocabulary allows it
  starts.bin      where documents begin
  marks.bin       some positions, and the number of characters before each
  tokens.json     the numbers of tokens, documents and characters, and the fingerprint of the text
  source.json     the size, time and checksum of each text file: when they differ, everything is made again
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import shutil
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from rearview.codec import Reader, parse_json, read_bytes
from rearview.errors import BadFile, RearviewError
from rearview.text import Tokenizer, load_tokenizer
from rearview.text.tokenizer import AT_ONCE, encode_tensors
from rearview.training.cache_folder import SourceReading, cache_root, cached_folder, key_of
from rearview.training.corpus import Corpus
from rearview.training.sources import empty
from rearview.training.text_files import TextFiles, TextPiece

LARGEST_NUMBERS = 2**20
# The tokens of a file take at most this many bytes per byte of its text.
BYTES_PER_BYTE = 2
TOKENS, STARTS, MARKS, NUMBERS = "tokens.bin", "starts.bin", "marks.bin", "tokens.json"

# Told what is being done, and how many of how many bytes of text have been read.
Progress = Callable[[str, int, int], None]


def silent(doing: str, done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class TokenFile:
    """Tokens in a file, and the numbers of the text that they are of."""

    corpus: Corpus
    fingerprint: str
    documents: int


@dataclass(frozen=True)
class _Numbers:
    """What tokens.json holds."""

    tokens: int
    bytes_per_token: int
    documents: int
    marks: int
    characters: int
    fingerprint: str


def tokens_of_files(files: TextFiles, tokenizer: Tokenizer, progress: Progress) -> TokenFile:
    """The tokens of files, from the cache if they are there."""
    with tempfile.TemporaryDirectory() as saved:
        tokenizer.save(saved)
        content = [path.read_text(encoding="utf-8") for path in sorted(Path(saved).iterdir())]
    folder = cache_root() / "tokens" / key_of(files, *content)
    cached_folder(folder, files, lambda new, reading: _write(new, reading, files, tokenizer, progress))
    return _open(folder)


def tokenizer_of_files(
    files: TextFiles,
    settings: str,
    make: Callable[[Iterator[str]], Tokenizer],
    progress: Progress,
    *,
    most: int | None = None,
) -> Tokenizer:
    """The tokenizer that `make` makes from the pieces of files, from the cache if it is there.

    Args:
        most: the number of characters that it reads; of a longer text, evenly spread pieces.
    """

    def build(new: Path, reading: SourceReading) -> None:
        report = _report("Learning the vocabulary", files.size, progress)
        pieces = _first_pass(files, reading, report)
        make(_spread(pieces, 1.0 if most is None else most / files.size)).save(new)

    folder = cache_root() / "tokenizers" / key_of(files, settings)
    return load_tokenizer(cached_folder(folder, files, build))


def _write(folder: Path, reading: SourceReading, files: TextFiles, tokenizer: Tokenizer, progress: Progress) -> None:
    kind = torch.uint16 if tokenizer.vocab_size <= 1 << 16 else torch.int32
    needed, free = files.size * BYTES_PER_BYTE * kind.itemsize // 2, shutil.disk_usage(folder).free
    if needed > free:
        raise RearviewError(
            f"{folder.parent}: the tokens of {files.size:,} bytes of text need up to {needed:,} bytes, and {free:,} "
            "are free. Set REARVIEW_CACHE to a folder on a larger disk."
        )
    lengths = _lengths(files, reading, _report("Reading the text", files.size, progress))
    if not lengths:
        raise empty(files.paths[0] if len(files.paths) == 1 else files.paths[0].parent)
    report = _report("Tokenizing the text", files.size, progress)
    digest = hashlib.sha256()
    starts, marks = array("q"), array("q")
    end = None if tokenizer.end_id is None else torch.tensor([tokenizer.end_id], dtype=torch.int32)
    tokens = characters = 0
    with (folder / TOKENS).open("wb") as file:
        for batch in _batches(files.pieces(lambda path, data: report(len(data)))):
            for piece, ids in zip(batch, encode_tensors(tokenizer, [each.text for each in batch]), strict=True):
                data = piece.text.encode("utf-8", errors="surrogatepass")
                if piece.starts:
                    digest.update(lengths[len(starts)].to_bytes(8, "big"))
                    starts.append(tokens)
                    tokens += 0 if end is None else _append(file, end, kind)
                digest.update(data)
                marks.extend((tokens, characters))
                tokens += _append(file, ids, kind)
                characters += len(piece.text)
        tokens += 0 if end is None else _append(file, end, kind)
    marks.extend((tokens, characters))
    (folder / STARTS).write_bytes(starts.tobytes())
    (folder / MARKS).write_bytes(marks.tobytes())
    numbers = _Numbers(
        tokens=tokens,
        bytes_per_token=kind.itemsize,
        documents=len(starts),
        marks=len(marks) // 2,
        characters=characters,
        fingerprint=digest.hexdigest(),
    )
    (folder / NUMBERS).write_text(json.dumps(asdict(numbers)))


def _open(folder: Path) -> TokenFile:
    try:
        numbers = Reader(folder / NUMBERS).read(
            _Numbers, parse_json(read_bytes(folder / NUMBERS, most=LARGEST_NUMBERS), folder / NUMBERS)
        )
        kind = torch.uint16 if numbers.bytes_per_token == 2 else torch.int32
        corpus = Corpus(
            _mapped(folder / TOKENS, numbers.tokens, kind),
            _mapped(folder / STARTS, numbers.documents, torch.int64),
            numbers.characters,
            _mapped(folder / MARKS, 2 * numbers.marks, torch.int64).view(-1, 2),
        )
        return TokenFile(corpus, numbers.fingerprint, numbers.documents)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(folder, f"is damaged ({error}). Remove it; it will be made again.") from error


def _mapped(path: Path, count: int, kind: torch.dtype) -> Tensor:
    expected, got = count * kind.itemsize, path.stat().st_size
    if got != expected:
        raise ValueError(f"{path.name} has {got:,} bytes, not {expected:,}")
    # Private, so that nothing is ever written to the file.
    return torch.from_file(str(path), shared=False, size=count, dtype=kind)


def _lengths(files: TextFiles, reading: SourceReading, report: Callable[[int], None]) -> array[int]:
    """The number of bytes of each document, which its fingerprint begins with; and the checksums of the files."""
    lengths = array("q")
    for piece in _first_pass(files, reading, report):
        if piece.starts:
            lengths.append(0)
        lengths[-1] += len(piece.text.encode("utf-8", errors="surrogatepass"))
    return lengths


def _first_pass(files: TextFiles, reading: SourceReading, report: Callable[[int], None]) -> Iterator[TextPiece]:
    def read(path: Path, data: bytes) -> None:
        reading.block(path, data)
        report(len(data))

    return files.pieces(read)


def _spread(pieces: Iterator[TextPiece], share: float) -> Iterator[str]:
    """About this share of the text, evenly spread; all of it, if that is at least 1."""
    seen = taken = 0
    for piece in pieces:
        if taken <= seen * share:
            taken += len(piece.text)
            yield piece.text
        seen += len(piece.text)


def _batches(pieces: Iterator[TextPiece]) -> Iterator[list[TextPiece]]:
    batch: list[TextPiece] = []
    for piece in pieces:
        batch.append(piece)
        if len(batch) == AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _append(file: BinaryIO, ids: Tensor, kind: torch.dtype) -> int:
    data = ids.to(kind).contiguous()
    # The memory of the tensor as it is: torch has no function for it that does without numpy.
    file.write(ctypes.string_at(data.data_ptr(), data.nbytes) if len(data) else b"")
    return len(data)


def _report(doing: str, total: int, progress: Progress) -> Callable[[int], None]:
    done = 0

    def report(size: int) -> None:
        nonlocal done
        done += size
        progress(doing, done, total)

    return report
