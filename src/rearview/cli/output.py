"""The standard streams of the command, where a disk is full or a reader has left.

An error of the operating system does not say which file it is about. Here it gets a name where it happens: below the
buffers, so that no caller of print() and no flush at exit can take it for another.
"""

import io
import os
import sys
from typing import Any, TextIO

from rearview.errors import RearviewError


class OutputRefused(RearviewError):
    """The standard output cannot be written to."""


class ReaderGone(BaseException):
    """The reader of the standard output has left (`| head`). Like an interrupt, it ends the command silently."""


class _Output(io.FileIO):
    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except BrokenPipeError:
            _discard_from_now_on(self)
            raise ReaderGone from None
        except OSError as error:
            _discard_from_now_on(self)
            raise OutputRefused(
                f"the standard output cannot be written: {error.strerror or error}. What was printed is incomplete."
            ) from error


class _Remarks(io.FileIO):
    def write(self, data: Any, /) -> Any:
        try:
            return super().write(data)
        except OSError:
            # There is no other place to report it; the exit code is that of the command.
            _discard_from_now_on(self)
            return super().write(data)


def refused(error: RearviewError) -> int:
    """Say why a command ends; its exit code."""
    # In one piece: several processes may write at once.
    sys.stderr.write(f"rearview: {error}\n")
    return 2


def name_refusals() -> None:
    """From now on print() raises `OutputRefused` or `ReaderGone`; remarks that stderr refuses are dropped."""
    sys.stdout = _on(_Output, sys.stdout)
    sys.stderr = _on(_Remarks, sys.stderr)


def _on(kind: type[io.FileIO], stream: TextIO) -> TextIO:
    """The same stream on files of this kind; a stream that is closed, or not a file, as it is."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    # Without a buffer (python -u) this is the file itself.
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if type(raw) is not io.FileIO:
        return stream
    stream.flush()
    file = kind(raw.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        file if raw is stream.buffer else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n" if os.linesep == "\n" else None,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def _discard_from_now_on(file: io.FileIO) -> None:
    """So that what is still in a buffer does not fail again when the interpreter ends."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, file.fileno())
    os.close(nothing)
