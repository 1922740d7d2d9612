"""Ctrl-C lets a long command stop where nothing is lost; a second Ctrl-C stops it at once."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType


class Interrupt:
    """In a `with` statement: call it to learn whether Ctrl-C or a termination signal has arrived.

    Args:
        doing: what the command does until it stops, to print; None to print nothing.

    >>> with Interrupt("Saving") as interrupt:
    ...     interrupt()
    False
    """

    def __init__(self, doing: str | None):
        self.doing = doing
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._handle)
            except ValueError:
                # Only the main thread may handle signals; in others they are left as they are.
                return self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # The next signal has its usual effect: it ends the process.
        self._restore()
        if self.doing is None:
            return
        print(f"\n{self.doing} (press again to stop at once)", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._before = {}


@contextmanager
def ended_at_once() -> Iterator[None]:
    """Within, Ctrl-C ends the process as it ends a program that is not Python's: nothing can catch it.

    >>> with ended_at_once():
    ...     signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    True
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    except ValueError:
        # Only the main thread may handle signals.
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
