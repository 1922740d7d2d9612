"""The kernel's own tests with random calls: guard pages around every buffer, sanitizers, valgrind.

They are those of `make native-test`, with a new seed every time; see native/tests/run.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from bench.soak.experiment import Experiment, Session, Tally
from native import build
from native.tests.run import SMALL

RUN = Path(__file__).parents[2] / "native" / "tests" / "run.py"
# The number of cases in one run of each way.
CASES = {"plain": 100, "sanitized": 20, "valgrind": 2}


def check_the_kernel(tally: Tally, session: Session) -> None:
    ways = [way for way in CASES if way != "valgrind" or shutil.which("valgrind")]
    number = 0
    while session.goes_on(tally):
        way, seed = ways[number % len(ways)], session.draw.getrandbits(31)
        small = SMALL if way == "valgrind" else ()
        words = [way, *small, "--cases", str(CASES[way]), "--seed", str(seed)]
        done = subprocess.run([sys.executable, str(RUN), *words], capture_output=True, text=True, check=False)
        number += 1
        cases = sum(int(found.replace(",", "")) for found in re.findall(r"([\d,]+) cases", done.stdout))
        tally.tried["runs of the kernel's tests"] += 1
        tally.tried[f"cases, {way}"] += cases
        if done.returncode or "FAILED" in done.stdout:
            tally.fail(f"run.py {' '.join(words)}: {(done.stdout + done.stderr).strip()[-300:]}")


def missing() -> str:
    try:
        build.Compiler.find()
    except build.BuildFailed as failure:
        return str(failure)
    return ""


EXPERIMENT = Experiment(
    "sanitizers",
    "The kernel never reads or writes outside of its buffers, and agrees with a naive reference.",
    check_the_kernel,
    quick=1,
    missing=missing,
)
