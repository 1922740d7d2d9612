"""Measurements in a separate process, because memory that an earlier call keeps would hide what the next one takes.

in_own_process("bench.suites.lowering:lowered", what="ranges", length=1000)

Where compilation takes most of the time, `InTurn` lets several processes prepare at once and measure one after the
other.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bench.harness import Progress

ROOT = Path(__file__).parents[1]


class Failed(RuntimeError):
    """The process ended with an error; the message is the last line that it printed."""


def in_own_process(function: str, progress: Progress = lambda text: None, **arguments: Any) -> Any:
    """Call `module:function` in a new process and return its result, which is passed as JSON."""
    start, pipe = time.monotonic(), subprocess.PIPE
    with _started(function, arguments, stdout=pipe, stderr=pipe) as child:
        while True:
            try:
                text, errors = child.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                progress(f"{time.monotonic() - start:.0f} s")
            except KeyboardInterrupt:
                child.kill()
                raise
    return _result_of(child.returncode, text, errors)


def _started(function: str, arguments: dict[str, Any], *words: str, **streams: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.process", function, json.dumps(arguments), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    return subprocess.Popen(command, cwd=ROOT, text=True, env=environment, **streams)


def _result_of(code: int, text: str, errors: str) -> Any:
    if code:
        raise Failed((errors.strip().splitlines() or [f"ended with {code}"])[-1])
    return json.loads(text.splitlines()[-1])


READY = "ready to be measured"


class InTurn:
    """Processes that prepare together, `at_once` of them; nothing is measured while one of them still prepares.

    The functions take a `ready`, which they call when all is compiled, and which returns when it is their turn.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        # Those that are not started yet, in groups.
        self._groups: list[list[tuple[str, dict[str, Any]]]] = []
        self._started: list[_Child] = []

    def add(self, function: str, arguments: dict[str, Any], *, alone: bool = False) -> None:
        """Processes come in groups of `at_once`, in the order in which they were added; `alone` is a group of one."""
        if alone:
            # The next one begins the group after it.
            self._groups += [[(function, arguments)], []]
            return
        if not self._groups or len(self._groups[-1]) == self.at_once:
            self._groups.append([])
        self._groups[-1].append((function, arguments))

    def result(self, function: str, arguments: dict[str, Any], progress: Progress) -> Any:
        """The result of a process, once all of its group are ready. The others of the group wait for their turn."""
        asked = (function, arguments)
        while all(child.asked != asked for child in self._started):
            self._started += [_Child(*each) for each in self._groups.pop(0)]
        try:
            start = time.monotonic()
            while waiting := sum(not child.is_ready() for child in self._started):
                progress(f"{waiting} processes are preparing, {time.monotonic() - start:.0f} s")
                time.sleep(0.2)
            return next(child for child in self._started if child.asked == asked).result(progress)
        except KeyboardInterrupt:
            for child in self._started:
                child.process.kill()
            raise


class _Child:
    def __init__(self, function: str, arguments: dict[str, Any]) -> None:
        # Files, since a pipe that nobody reads yet can fill up; read by their names, since a file has one place to read
        # and write, and the process writes.
        self._said, self._errors = (tempfile.NamedTemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.asked = (function, arguments)
        self.process = _started(
            function, arguments, "in turn", stdin=subprocess.PIPE, stdout=self._said, stderr=self._errors
        )  # fmt: skip

    def is_ready(self) -> bool:
        """Whether it waits for its turn, or has ended."""
        return self.process.poll() is not None or READY in _text(self._said).splitlines()

    def result(self, progress: Progress) -> Any:
        start = time.monotonic()
        # One that has failed already reads nothing.
        with contextlib.suppress(BrokenPipeError):
            assert self.process.stdin is not None
            self.process.stdin.write("\n")
            self.process.stdin.close()
        while self.process.poll() is None:
            progress(f"{time.monotonic() - start:.0f} s")
            time.sleep(0.05)
        return _result_of(self.process.returncode, _text(self._said), _text(self._errors))


def _text(file: Any) -> str:
    return Path(file.name).read_text()


def _wait_for_turn() -> None:
    if torch.cuda.is_initialized():
        # What compilation needed is free for the others.
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    print(READY, flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the benchmark has ended before the turn of this process")


def start_of_peak() -> int | None:
    """The bytes in use now, from which `peak` counts. Linux only; None on other systems."""
    # Writing 5 resets the peak to the current size.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def peak() -> int | None:
    """The largest resident set since `start_of_peak`, or since the process began."""
    # getrusage would not do: there a process inherits the peak of its parent.
    return _status("VmHWM")


def free_bytes() -> float:
    """The memory available to a new process, if the system reports it."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def _status(field: str) -> int | None:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:")), None)


if __name__ == "__main__":
    module, _, name = sys.argv[1].partition(":")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    call: Callable[..., Any] = getattr(importlib.import_module(module), name)
    named: dict[str, Any] = {"ready": _wait_for_turn} if sys.argv[3:] == ["in turn"] else {}
    print(json.dumps(call(**json.loads(sys.argv[2]), **named)))
