"""Measurements in a separate process, because memory that an earlier call keeps would hide what the next one takes.

in_own_process("bench.suites.lowering:lowered", what="ranges", length=1000)
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import subprocess
import sys
import time
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
    print(json.dumps(getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))))
