"""One thread that owns the models and runs one job at a time; jobs wait in a queue and can be cancelled.

>>> heard = []
>>> worker = Worker(Limits())
>>> job = worker.submit(lambda job: {"answer": 42}, lambda name, value: heard.append((name, value)))
>>> job.wait(), heard
(True, [('started', None), ('result', {'answer': 42})])
>>> worker.stop()
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from rearview.errors import RearviewError
from rearview.webapp.limits import Limits

# Called in the worker's thread with the name of an event and its value.
Emit = Callable[[str, Any], None]
Work = Callable[["Job"], Any]


class JobCancelled(Exception):
    """Raised inside a job whose reader has gone away."""


class Busy(RearviewError):
    """Too many jobs are waiting."""


class Job:
    """One request to the worker. It emits "started", any number of its own events, then "result" or "error"."""

    def __init__(self, work: Work, emit: Emit, seconds: float):
        self._work, self._emit, self._seconds = work, emit, seconds
        self._cancelled, self._ended = threading.Event(), threading.Event()
        self._deadline = float("inf")

    def emit(self, name: str, value: Any = None) -> None:
        """Send an event to the reader, after checking that there still is one."""
        self.check()
        self._emit(name, value)

    def check(self) -> None:
        """Raise if the job was cancelled, or has run for too long."""
        if self._cancelled.is_set():
            raise JobCancelled
        if time.monotonic() > self._deadline:
            raise RearviewError(f"This took longer than {self._seconds:g} seconds and was stopped. Use a shorter text.")

    def cancel(self) -> None:
        """Stop the job at its next check; if it is still waiting, it does not start."""
        self._cancelled.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until the job has ended; whether it has."""
        return self._ended.wait(seconds)

    @contextmanager
    def checking(self, model: nn.Module) -> Iterator[None]:
        """Check before each module of a model that runs inside the block, so that a long pass can be cancelled."""
        hooks = [part.register_forward_pre_hook(lambda *_: self.check()) for part in model.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def run(self) -> None:
        """Do the work; called by the worker."""
        self._deadline = time.monotonic() + self._seconds
        try:
            self.emit("started")
            self.emit("result", self._work(self))
        except JobCancelled:
            pass
        except RearviewError as error:
            self._emit("error", str(error))
        except Exception as error:
            # A model may raise anything. Its message may contain the text, so the log has only the type.
            self._emit("error", f"{type(error).__name__}: {error}")
        finally:
            self._ended.set()


class Worker:
    """The thread, and its queue."""

    def __init__(self, limits: Limits):
        self._limits = limits
        self._jobs: queue.Queue[Job | None] = queue.Queue(limits.queue)
        self._current: Job | None = None
        self._thread = threading.Thread(target=self._loop, name="rearview-studio", daemon=True)
        self._thread.start()

    def submit(self, work: Work, emit: Emit) -> Job:
        """Put a job into the queue; raises `Busy` if the queue is full."""
        job = Job(work, emit, self._limits.job_seconds)
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Busy(f"{self._limits.queue} requests are waiting already. Try again when some are done.") from None
        return job

    @property
    def waiting(self) -> int:
        """The number of jobs that have not started."""
        return self._jobs.qsize()

    def stop(self) -> None:
        """Cancel the running job and drop those that wait."""
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is not None:
                job.cancel()
        if (current := self._current) is not None:
            current.cancel()
        self._jobs.put(None)
        self._thread.join(timeout=10)

    def _loop(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._current = job
            job.run()
            self._current = None
