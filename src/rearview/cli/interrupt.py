"""Ctrl-C asks a long command to stop where nothing is lost; a second one leaves at once."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType


class Interrupt:
    """In a `with` statement: call it to know whether somebody asked to stop. A request to terminate counts as well.

    >>> with Interrupt("saving") as asked:
    ...     asked()
    False
    """

    def __init__(self, doing: str):
        self.doing = doing
        self.signal: int | None = None
        self._before: dict[int, object] = {}

    def __call__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._before[number] = signal.signal(number, self._asked)
            except ValueError:
                # Only the main thread may: elsewhere signals go where they always went.
                return self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _asked(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        # The next one does what it always does: leave.
        self._restore()
        print(f"\n{self.doing} (again to leave at once)", file=sys.stderr, flush=True)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]
        self._before = {}
