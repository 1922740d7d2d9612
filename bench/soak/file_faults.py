"""A fault at the n-th file operation of a process: it is killed there, or the system refuses the operation.

Python announces its file operations (audit events): files and folders that are opened, made, renamed, listed and
removed. Writes and syncs are not announced, so the functions that make them are replaced.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

KILL, FULL, BROKEN = "kill", "ENOSPC", "EIO"
KINDS = (KILL, FULL, BROKEN)
ERRORS = {FULL: errno.ENOSPC, BROKEN: errno.EIO}
ANNOUNCED = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir", "os.truncate")


class FileFaults:
    """Counts the operations on files below a folder, and harms one of them.

    Args:
        at: the operation that is harmed, counted from 1; 0 for none.
        lasts: whether all operations after it are refused too, as on a disk that stays full.
    """

    def __init__(self, folder: Path, kind: str, at: int, *, lasts: bool = False):
        self.folder, self.kind, self.at, self.lasts = str(folder), kind, at, lasts
        self.count = 0

    def arm(self) -> None:
        """From here on, in this process, for good: an audit hook cannot be removed."""
        sys.addaudithook(self._heard)
        write_bytes, fsync = Path.write_bytes, os.fsync

        def half(path: Path, data: bytes) -> None:
            write_bytes(path, data[: len(data) // 2])

        def write(path: Path, data: bytes) -> int:
            self._operation(str(path), lambda: half(path, data))
            return write_bytes(path, data)

        def sync(file: Any) -> None:
            self._operation(self.folder)
            fsync(file)

        Path.write_bytes = write  # pyright: ignore[reportAttributeAccessIssue]
        os.fsync = sync

    def _heard(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ANNOUNCED and isinstance(arguments[0], (str, bytes)):
            self._operation(os.fsdecode(arguments[0]))

    def _operation(self, path: str, before: Callable[[], None] = lambda: None) -> None:
        if path != self.folder and not path.startswith(f"{self.folder}/"):
            return
        self.count += 1
        if self.count == self.at or (self.lasts and 0 < self.at < self.count and self.kind != KILL):
            if self.count == self.at:
                # What a write leaves of itself; it must not count as operations of its own.
                at, self.at = self.at, -1
                before()
                self.at = at
            if self.kind == KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(ERRORS[self.kind], os.strerror(ERRORS[self.kind]), path)
