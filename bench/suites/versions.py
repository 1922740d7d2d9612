"""This source tree against another one, an older release for example: the same calls of public functions.

    git worktree add ../before v0.1.0 && (cd ../before && make native)
    python -m bench versions --before ../before

Each version runs in a process of its own, and the two take turns. A call is timed if both give the same answer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from bench.harness import Case, Contestant, Outcome, Ready, Report, Suite, Target, Task, any_wrong, outcomes_of
from bench.measured_calls import CALLS
from bench.process import ROOT
from bench.table import Table, ms, ratio

NOW, BEFORE = "rearview, now", "before"
ROUNDS, QUICK_ROUNDS = 21, 3
# Numbers of two versions may differ by rounding, in bfloat16 too.
TOLERANCE = 1e-2
# More than chance on a busy machine.
SLOWER = 1.1


class Version:
    """A process that makes one call of a source tree whenever it is asked, until this object is deleted."""

    def __init__(self, source: Path, name: str):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(ROOT / "bench" / "measured_calls.py"), name, str(torch.get_num_threads())],
            env={**os.environ, "PYTHONPATH": str(source / "src")}, stdin=pipe, stdout=pipe, stderr=pipe, text=True,
        )  # fmt: skip
        weakref.finalize(self, _end, self.process)
        loaded = self._line().removeprefix("started ")
        if not Path(loaded).is_relative_to((source / "src").resolve()):
            raise RuntimeError(f"{loaded} was imported instead of {source}")

    def run(self) -> str:
        return self._ask("run")

    def answer(self) -> list[list[float]]:
        return json.loads(self._ask("answer"))

    def _ask(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        assert self.process.stdout is not None
        if line := self.process.stdout.readline().strip():
            return line
        errors = self.process.communicate()[1].strip().splitlines()
        raise RuntimeError(errors[-1] if errors else f"the process ended with {self.process.returncode}")


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def contestants(name: str, before: Path) -> list[Contestant]:
    answers: list[list[list[float]]] = []

    def prepare(source: Path) -> Ready:
        version = Version(source, name)
        answers.append(version.answer())
        return Ready(version.run, lambda: fault(answers[-1], answers[0]))

    return [Contestant(BEFORE, partial(prepare, before)), Contestant(NOW, partial(prepare, ROOT))]


def fault(found: list[list[float]], expected: list[list[float]]) -> str:
    """What differs between two answers, or "".

    >>> fault([[1.0, 2.0]], [[1.0, 2.1]])
    'result 0 is [1.0, 2.0], before [1.0, 2.1]'
    """
    if len(found) != len(expected):
        return f"{len(found)} results, before {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if any(abs(a - b) > TOLERANCE * max(1.0, abs(b)) for a, b in zip(ours, theirs, strict=True)):
            return f"result {index} is {ours}, before {theirs}"
    return ""


def cases(before: Path, *, rounds: int) -> list[Case]:
    targets = (Target(NOW, BEFORE, at_most=SLOWER),)
    return [
        Case(name, partial(contestants, name, before), targets=targets, rounds=rounds, sample_ms=0.0) for name in CALLS
    ]


def table_of(outcomes: Sequence[Outcome]) -> Table:
    rows = []
    for outcome in outcomes:
        then, now = outcome.row(BEFORE), outcome.row(NOW)
        notes = "; ".join(f"{row.name}: {row.note}" for row in outcome.rows if row.note)
        rows.append(
            (
                outcome.case.name,
                ms(then.median) if then else "-",
                ms(now.median) if now else "-",
                ratio(outcome.times_faster(NOW, than=BEFORE)),
                notes,
            )
        )
    return Table(("call", "before ms", "now ms", "now is faster", "note"), rows, last_is_words=True)


class VersionsSuite(Suite):
    name, title, suffix = "versions", "Two versions of Rearview", "-versions"

    def options(self, add: Callable[..., object]) -> None:
        add("--before", type=Path, metavar="DIR", help="versions: the source tree to compare with, its kernel built")

    def missing(self, args: argparse.Namespace) -> str:
        if args.before is None:
            return "expected --before DIR, the source tree to compare with: git worktree add DIR COMMIT"
        if not (args.before / "src" / "rearview" / "__init__.py").is_file():
            return f"--before: expected a source tree of Rearview, got {args.before}, which has no src/rearview"
        return ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        return [*cases(args.before, rounds=args.rounds or (QUICK_ROUNDS if args.quick else ROUNDS))]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        outcomes = outcomes_of(results)
        verdicts = [text for each in outcomes for text in each.verdicts()]
        described = f"before: {describe(args.before)}; now: {describe(ROOT)}"
        return Report([described], [("", table_of(outcomes))], verdicts, is_wrong=any_wrong(outcomes))


def describe(source: Path) -> str:
    """The version and the commit of a source tree."""
    line = (source / "src" / "rearview" / "__init__.py").read_text(encoding="utf-8").partition("__version__ = ")[2]
    version = line.partition("\n")[0].strip('"')
    commit = subprocess.run(
        ["git", "-C", str(source), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return f"{version} ({commit})" if commit else version


SUITES = (VersionsSuite(),)
