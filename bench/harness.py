"""The parts of a benchmark, and how it is measured.

A suite declares cases. The contestants of a case take turns: each runs once per round, in an order that changes, so
that a busy moment of the machine affects all of them. No contestant is timed before its answer is judged correct. A
task is other work that gives one row of a table.

>>> import torch
>>> case = Case("sum", lambda: [Contestant("a", lambda: Ready(lambda: 1)), Contestant("b", lambda: Ready(lambda: 2))])
>>> outcome = case.run(Settings())
>>> [(row.name, len(row.samples)) for row in outcome.rows]
[('a', 9), ('b', 9)]
"""

from __future__ import annotations

import argparse
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from bench.noise import Neighbours
from bench.table import Table
from rearview import Unsupported

CPU = torch.device("cpu")
ROUNDS = 9
MOST_REPEATS = 500

Call = Callable[[], object]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """The device, and how long a case waits until other programs are quiet."""

    device: torch.device = CPU
    patience_s: float = 0.0
    progress: Progress = lambda text: None


@dataclass(frozen=True)
class Ready:
    """A prepared contestant: the call that is timed, and `fault`, which says what is wrong with its answer, or ""."""

    call: Call
    fault: Callable[[], str] = lambda: ""
    note: str = ""


@dataclass(frozen=True)
class Contestant:
    """`prepare` does what a user does once: make a dense mask, compile, make the first call."""

    name: str
    prepare: Callable[[], Ready]
    # The number of rounds that it takes part in, from the first; None for all.
    rounds: int | None = None


@dataclass(frozen=True)
class Row:
    """One contestant of a case: milliseconds, one sample per round; or a note that says why there are none."""

    name: str
    samples: tuple[float, ...] = ()
    first_ms: float | None = None
    note: str = ""
    is_wrong: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def quartiles(self) -> tuple[float, float]:
        if len(self.samples) == 1:
            return self.samples[0], self.samples[0]
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high


@dataclass(frozen=True)
class Target:
    """A target: `ours` is `at_least` this many times as fast as `rival`, or takes `at_most` this share of its time."""

    ours: str
    rival: str
    at_least: float | None = None
    at_most: float | None = None
    remark: str = ""

    def verdict(self, outcome: Outcome) -> str:
        """Whether the target is met, as a line of the report.

        >>> outcome = Outcome(Case("window", list), [Row("ours", (1.0,)), Row("SDPA", (2.5,))])
        >>> Target("ours", "SDPA", at_least=3).verdict(outcome)
        'NOT MET: window, ours against SDPA: 2.50x, asked 3x'
        >>> Target("ours", "SDPA", at_most=0.5).verdict(outcome)
        'met: window, ours takes 0.40 of SDPA, asked at most 0.5'
        """
        got, remark = outcome.times_faster(self.ours, than=self.rival), f" ({self.remark})" * bool(self.remark)
        if got is None:
            return f"not judged: {outcome.case.title}, {self.ours} against {self.rival}: one of the two was not timed"
        if self.at_most is not None:
            word = "met" if 1 / got <= self.at_most else "NOT MET"
            told = f"{self.ours} takes {1 / got:.2f} of {self.rival}, asked at most {self.at_most:g}"
        else:
            word = "met" if got >= (self.at_least or 0) else "NOT MET"
            told = f"{self.ours} against {self.rival}: {got:.2f}x, asked {self.at_least:g}x"
        return f"{word}: {outcome.case.title}, {told}{remark}"


@dataclass(frozen=True)
class Case:
    """`contestants` is called when the case's turn comes, because what it prepares may be large."""

    name: str
    contestants: Callable[[], Sequence[Contestant]]
    # The table of the suite that it belongs to.
    part: str = ""
    targets: tuple[Target, ...] = ()
    rounds: int = ROUNDS
    # The shortest duration of a sample, for which short calls are repeated. With 0 every call is a sample.
    sample_ms: float = 5.0
    # Whether a disturbed round may be repeated; False if a call changes state, as a training step does.
    can_repeat: bool = True
    # What the tables show besides times: sizes, operations.
    facts: Mapping[str, float | str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.name}, {self.part}" if self.part else self.name

    def run(self, settings: Settings) -> Outcome:
        """Prepare and judge every contestant, then time the correct ones."""
        contestants = self.contestants()
        rows: dict[str, Row] = {}
        calls: dict[str, Call] = {}
        for each in contestants:
            settings.progress(f"preparing {each.name}")
            try:
                start = time.perf_counter()
                ready = each.prepare()
                _wait(settings.device)
                first_ms = 1000 * (time.perf_counter() - start)
                settings.progress(f"judging {each.name}")
                fault = ready.fault()
            except Exception as error:
                rows[each.name] = Row(each.name, note=_skipped(error))
                continue
            if fault:
                rows[each.name] = Row(each.name, note=f"WRONG: {fault}", is_wrong=True)
            else:
                rows[each.name] = Row(each.name, first_ms=first_ms, note=ready.note)
                calls[each.name] = ready.call
        limits = {each.name: each.rounds for each in contestants if each.rounds is not None}
        taken = interleaved(
            calls,
            rounds=self.rounds,
            limits=limits,
            at_least_ms=self.sample_ms,
            settings=settings if self.can_repeat else replace(settings, patience_s=0.0),
        )
        for name, samples in taken.samples.items():
            rows[name] = replace(rows[name], samples=tuple(samples))
        return Outcome(self, [rows[each.name] for each in contestants], taken.rounds, taken.loud, taken.was_stopped)


@dataclass(frozen=True)
class Outcome:
    """All contestants of a case."""

    case: Case
    rows: Sequence[Row]
    rounds: int = 1
    # Rounds that other programs disturbed.
    loud: int = 0
    was_stopped: bool = False

    def row(self, name: str) -> Row | None:
        """The contestant of this name, if it was timed."""
        return next((row for row in self.rows if row.name == name and row.samples), None)

    def times_faster(self, name: str, than: str) -> float | None:
        """How many times as fast: the median over rounds of the ratio in the same round."""
        ours, theirs = self.row(name), self.row(than)
        if ours is None or theirs is None:
            return None
        return statistics.median(b / a for a, b in zip(ours.samples, theirs.samples, strict=False))

    def verdicts(self) -> list[str]:
        return [target.verdict(self) for target in self.case.targets]


@dataclass(frozen=True)
class Task:
    """Work that is not timed in rounds. `run` returns what the report of the suite reads."""

    name: str
    run: Callable[[Settings], object]
    # Whether it runs for any choice of cases.
    always: bool = False

    @property
    def title(self) -> str:
        return self.name


@dataclass(frozen=True)
class Report:
    """The results of a suite, to which the harness adds the machine, the duration and the noise."""

    about: Sequence[str]
    tables: Sequence[tuple[str, Table]]
    verdicts: Sequence[str] = ()
    legend: str = ""
    # Something of Rearview gave a wrong answer.
    is_wrong: bool = False


class Suite:
    """A declaration of what is measured and how it is reported. The harness does the rest."""

    name = ""
    # The heading of the dated file, and the suffix of its name.
    title = ""
    suffix = ""

    def options(self, add: Callable[..., object]) -> None:
        """Add arguments to those that every suite has."""

    def device(self, args: argparse.Namespace) -> torch.device:
        return CPU

    def missing(self, args: argparse.Namespace) -> str:
        """Why the suite cannot be run here, or ""."""
        return ""

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        raise NotImplementedError

    def expect(self, items: Sequence[Case | Task]) -> None:
        """Told once which items will be run, in this order."""

    def is_whole(self, args: argparse.Namespace) -> bool:
        """Whether the arguments select the whole suite; only then is a file kept."""
        return not (args.quick or args.cases)

    def file_suffix(self, args: argparse.Namespace) -> str:
        return self.suffix

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        raise NotImplementedError


def outcomes_of(results: Sequence[object], part: str | None = None) -> list[Outcome]:
    """The outcomes of timed cases among the results of a suite, for one of its tables if given."""
    return [each for each in results if isinstance(each, Outcome) and part in (None, each.case.part)]


def any_wrong(outcomes: Sequence[Outcome]) -> bool:
    """Whether a contestant of ours gave a wrong answer."""
    return any(row.is_wrong and row.name.startswith("rearview") for each in outcomes for row in each.rows)


@dataclass(frozen=True)
class Rounds:
    """Milliseconds of each contestant, one sample per round, and the number of rounds that were disturbed."""

    samples: dict[str, list[float]]
    rounds: int
    loud: int
    was_stopped: bool = False


def interleaved(
    calls: Mapping[str, Call],
    *,
    rounds: int,
    settings: Settings,
    at_least_ms: float = 0.0,
    limits: Mapping[str, int] | None = None,
) -> Rounds:
    """Run each call once per round. Ctrl-C stops and keeps the complete rounds."""
    device, limits = settings.device, limits or {}
    repeats = {name: _repeats(call, device, at_least_ms) for name, call in calls.items()}
    order, names, others = random.Random(0), list(calls), Neighbours()
    deadline = time.monotonic() + settings.patience_s
    taken: list[dict[str, float]] = []
    loud, was_stopped = 0, False
    with _no_garbage_collection():
        try:
            while calls and len(taken) < rounds:
                settings.progress(f"round {len(taken) + 1} of {rounds}")
                # The order changes, because a call finds the processor caches in the state that the previous call left.
                order.shuffle(names)
                turns = [name for name in names if len(taken) < limits.get(name, rounds)]
                others.await_quiet(deadline)
                others.restart()
                samples = {name: sample_ms(calls[name], repeats[name], device) for name in turns}
                # The choice depends on the load of other programs, never on the measured times.
                was_loud = others.are_loud()
                if not was_loud or time.monotonic() >= deadline:
                    taken.append(samples)
                    loud += was_loud
        except KeyboardInterrupt:
            was_stopped = True
    by_name = {name: [samples[name] for samples in taken if name in samples] for name in calls}
    return Rounds(by_name, len(taken), loud, was_stopped)


def sample_ms(call: Call, repeats: int, device: torch.device) -> float:
    """The mean of `repeats` calls in a row."""
    if device.type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(repeats):
            call()
        end.record()
        torch.cuda.synchronize(device)
        return start.elapsed_time(end) / repeats
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1000 * (time.perf_counter() - begin) / repeats


def _repeats(call: Call, device: torch.device, at_least_ms: float) -> int:
    if not at_least_ms:
        return 1
    sample_ms(call, 1, device)
    once = min(sample_ms(call, 1, device) for _ in range(3))
    return max(1, min(MOST_REPEATS, math.ceil(at_least_ms / max(once, 1e-6))))


def _skipped(error: Exception) -> str:
    reasons = "; ".join(error.reasons) if isinstance(error, Unsupported) else str(error)
    first_line = next((line.strip() for line in reasons.splitlines() if line.strip()), type(error).__name__)
    return f"skipped: {first_line[:90]}"


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
