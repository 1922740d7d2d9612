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
    command = [sys.executable, "-m", "bench.process", function, json.dumps(arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    start, pipe = time.monotonic(), subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, env=environment) as child:
        while True:
            try:
                text, errors = child.communicate(timeout=1)
                break
            except subprocess.TimeoutExpired:
                progress(f"{time.monotonic() - start:.0f} s")
            except KeyboardInterrupt:
                child.kill()
                raise
    if child.returncode:
        raise Failed((errors.strip().splitlines() or [f"ended with {child.returncode}"])[-1])
    return json.loads(text.splitlines()[-1])


READY = "ready to be measured"


class InTurn:
    """Processes that prepare together, `at_once` of them; nothing is measured while one of them still prepares.

    The functions take a `ready`, which they call when all is compiled, and which returns when it is their turn.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._asked: list[tuple[str, dict[str, Any]]] = []
        self._groups: list[int] = []
        self._started: list[_Child] = []

    def add(self, function: str, arguments: dict[str, Any], *, alone: bool = False) -> None:
        """Processes come in groups of `at_once`, in the order in which they were added; `alone` is a group of one."""
        if alone or not self._groups or self._groups[-1] in (0, self.at_once):
            self._groups.append(0)
        # 0 stands for one that is alone.
        self._groups[-1] += 0 if alone else 1
        self._asked.append((function, arguments))

    def result(self, function: str, arguments: dict[str, Any], progress: Progress) -> Any:
        """The result of a process, once all of its group are ready. The others of the group wait for their turn."""
        place = self._asked.index((function, arguments))
        while len(self._started) <= place:
            first = len(self._started)
            self._started += [_Child(*each) for each in self._asked[first : first + max(1, self._groups.pop(0))]]
        try:
            start = time.monotonic()
            while waiting := sum(not child.is_ready() for child in self._started):
                progress(f"{waiting} processes are preparing, {time.monotonic() - start:.0f} s")
                time.sleep(0.2)
            return self._started[place].result(progress)
        except KeyboardInterrupt:
            for child in self._started:
                child.process.kill()
            raise


class _Child:
    def __init__(self, function: str, arguments: dict[str, Any]) -> None:
        # Files, since a pipe that nobody reads yet can fill up; read by their names, since a file has one place to read
        # and write, and the process writes.
        self._said, self._errors = (tempfile.NamedTemporaryFile("w+") for _ in range(2))  # noqa: SIM115
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bench.process", function, json.dumps(arguments), "in turn"],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=self._said, stderr=self._errors, text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        )  # fmt: skip

    def is_ready(self) -> bool:
        """Whether it waits for its turn, or has ended."""
        return self.process.poll() is not None or READY in self._words()

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
        if self.process.returncode:
            errors = Path(self._errors.name).read_text()
            raise Failed((errors.strip().splitlines() or [f"ended with {self.process.returncode}"])[-1])
        return json.loads(self._words()[-1])

    def _words(self) -> list[str]:
        return Path(self._said.name).read_text().splitlines()


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
