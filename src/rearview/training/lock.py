"""A folder that one process writes to at a time.

>>> import tempfile
>>> from pathlib import Path
>>> folder = Path(tempfile.mkdtemp())
>>> with FolderLock(folder):
...     check_unlocked(folder)  # doctest: +ELLIPSIS
Traceback (most recent call last):
rearview.training.lock.FolderInUse: ...: process ... on ... is writing to this folder. Wait until it ends, or stop it.
"""

from __future__ import annotations

import os
import platform
import warnings
from contextlib import suppress
from io import FileIO
from pathlib import Path

from rearview.drawing.cells import harmless
from rearview.errors import BadArgument, RearviewError

try:
    import fcntl
except ImportError:
    # Windows has no flock: folders are not locked there.
    fcntl = None

NAME = ".lock"


class FolderInUse(RearviewError):
    """Another process writes to the folder."""


class FolderLock:
    """Holds a folder, in a `with` statement. The system ends the lock with the process, however that ends."""

    def __init__(self, folder: Path):
        self.path = folder / NAME
        self._file: FileIO | None = None

    def __enter__(self) -> FolderLock:
        if fcntl is None:
            return self
        self._file = file = _locked(self.path)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}".encode())
        return self

    def __exit__(self, *exception: object) -> None:
        if self._file is not None:
            # A disk that fails may refuse this too. The file alone locks nothing, and must not hide why the run ends.
            with suppress(OSError):
                self.path.unlink(missing_ok=True)
            self._file.close()
            self._file = None


def check_unlocked(folder: Path) -> None:
    """Raise `FolderInUse` if a process holds the folder now."""
    if fcntl is not None:
        # Without the file, or the folder, there is no lock.
        with suppress(FileNotFoundError, NotADirectoryError):
            _locked(folder / NAME, create=False).close()


def _locked(path: Path, *, create: bool = True) -> FileIO:
    assert fcntl is not None
    while True:
        try:
            file = FileIO(os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666), "r+")
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            got = f"{error.strerror} ({path.parent})"
            raise BadArgument("out", expected="a folder that can be written to", got=got) from error
        try:
            # Several processes may look at once, and must not take each other for one that writes.
            fcntl.flock(file, (fcntl.LOCK_EX if create else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = harmless(file.read(200).decode(errors="replace")) or "another process"
            file.close()
            raise FolderInUse(
                f"{path.parent}: {holder} is writing to this folder. Wait until it ends, or stop it."
            ) from None
        except OSError as error:
            # Some network file systems have no locks; that is no reason not to train on them.
            warnings.warn(
                f"{path.parent} cannot be locked ({error.strerror}); make sure that only one process writes to it.",
                stacklevel=3,
            )
            return file
        # The process that held it may have removed the file after it was opened here: then this lock is of no use.
        try:
            if os.path.samestat(os.fstat(file.fileno()), os.stat(path)):
                return file
        except FileNotFoundError:
            pass
        file.close()
