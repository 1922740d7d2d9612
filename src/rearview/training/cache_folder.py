"""A folder that is computed from text files once, and kept until a file changes.

It is written beside its place and renamed, so it is complete or absent. One process computes it; others wait for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rearview.codec import parse_json, read_bytes
from rearview.errors import BadArgument, BadFile, RearviewError
from rearview.training.sync import sync
from rearview.training.text_files import TextFiles, checksum_of_file

try:
    import fcntl
except ImportError:
    # Windows has no flock: processes that start together may compute the folder twice.
    fcntl = None

RECORD = "source.json"
FORMAT = 1
LARGEST_RECORD = 2**30
# A file that was changed this short before its checksum was taken may have been changed after it, in the same tick of
# the clock of its file system.
TICK = 2_000_000_000


def cache_root() -> Path:
    """$REARVIEW_CACHE, or `rearview` in the user's cache folder."""
    if given := os.environ.get("REARVIEW_CACHE"):
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rearview")


def key_of(files: TextFiles, *parts: object) -> str:
    """The name of a folder for these files and settings. It is the same after a file has changed."""
    settings = [files.separator, files.encoding, *(str(path.resolve()) for path in files.paths), *parts]
    return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:24]


def cached_folder(folder: Path, files: TextFiles, build: Callable[[Path, SourceReading], None]) -> Path:
    """The folder, if it was built from the files as they are now; otherwise `build` fills it.

    `build` gets an empty folder, and must read every file through the `SourceReading`, which takes their checksums.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_suffix(".lock")):
            if not _is_fresh(folder, files):
                _build(folder, files, build)
    except OSError as error:
        advice = "Set REARVIEW_CACHE to a folder with more room that can be written to."
        got = f"{error.strerror} ({folder})"
        raise BadArgument("REARVIEW_CACHE", expected="a folder for tokens", got=got, advice=advice) from error
    return folder


class SourceReading:
    """The files as they are read: each block goes into the checksum of its file."""

    def __init__(self, files: TextFiles):
        self.files = files
        self._before = {path: _stat(path) for path in files.paths}
        self._digests = {path: hashlib.sha256() for path in files.paths}

    def block(self, path: Path, data: bytes) -> None:
        """Called with every block of a file, in the first pass over all files."""
        self._digests[path].update(data)

    def record(self) -> dict[str, object]:
        """The state of every file; an error if one has changed since the first pass began."""
        for path, before in self._before.items():
            if _stat(path) != before:
                raise BadFile(path, "was changed while it was read. Start again when it is complete.")
        now = time.time_ns()
        found = [[str(path), *self._before[path], self._digests[path].hexdigest()] for path in self.files.paths]
        return {"format": FORMAT, "time": now, "files": found}


def _build(folder: Path, files: TextFiles, build: Callable[[Path, SourceReading], None]) -> None:
    unfinished, old = folder.with_suffix(".part"), folder.with_suffix(".old")
    for left_over in (unfinished, old):
        shutil.rmtree(left_over, ignore_errors=True)
    unfinished.mkdir()
    try:
        reading = SourceReading(files)
        build(unfinished, reading)
        (unfinished / RECORD).write_text(json.dumps(reading.record()))
        for path in unfinished.iterdir():
            sync(path)
        if folder.exists():
            # A run that has mapped the old files keeps them until it ends.
            os.replace(folder, old)
        os.replace(unfinished, folder)
        sync(folder.parent)
    finally:
        for left_over in (unfinished, old):
            shutil.rmtree(left_over, ignore_errors=True)


def _is_fresh(folder: Path, files: TextFiles) -> bool:
    try:
        record: Any = parse_json(read_bytes(folder / RECORD, most=LARGEST_RECORD), folder / RECORD)
        known = {entry[0]: entry[1:] for entry in record["files"]}
        if record["format"] != FORMAT or list(known) != list(map(str, files.paths)):
            return False
        for path in files.paths:
            size, changed, checksum = known[str(path)]
            now = _stat(path)
            if now[0] != size:
                return False
            settled = now[1] == changed and changed < record["time"] - TICK
            if not settled and checksum_of_file(path) != checksum:
                return False
    except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError, IndexError):
        return False
    return True


def _stat(path: Path) -> list[int]:
    try:
        found = path.stat()
    except OSError as error:
        raise BadFile(path, f"cannot be read: {error.strerror}.") from error
    return [found.st_size, found.st_mtime_ns]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("a") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError as error:
                raise RearviewError(
                    f"{path} cannot be locked ({error.strerror}). Set REARVIEW_CACHE to a folder on a local disk."
                ) from error
        yield
