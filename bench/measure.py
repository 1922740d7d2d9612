"""Interleaved rounds: each contestant once a round, so that a busy moment of the machine hits them all.

>>> import torch
>>> taken = interleaved({"a": lambda: None, "b": lambda: None}, rounds=3, device=torch.device("cpu"))
>>> {name: len(samples) for name, samples in taken.samples.items()}
{'a': 3, 'b': 3}
"""

from __future__ import annotations

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from bench.cases import Case
from bench.judge import Inputs, Judge
from bench.noise import Neighbours
from bench.rivals import AUTO, OURS, Attention, Contestant
from rearview import Unsupported, plan

FORWARD, TRAINING = "forward", "forward+backward"
MOST_REPEATS = 500
# Another engine of ours must be this much faster before it is said that "auto" chose badly: less is noise.
BEHIND = 1.15

Call = Callable[[], object]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """One contestant at one case: its samples in ms, one a round; or a note that says why there are none."""

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
class Rounds:
    """Milliseconds of each contestant, one sample a round; and in how many rounds other programs were loud."""

    samples: dict[str, list[float]]
    loud: int


@dataclass(frozen=True)
class Outcome:
    """All contestants of a case, in one direction."""

    case: Case
    direction: str
    rows: list[Row]
    auto_engine: str = ""
    # On a CPU "auto" never makes a user wait for a compiler: an engine that compiles is told of, not held against it.
    auto_compiles: bool = True
    rounds: int = 1
    loud_rounds: int = 0

    def row(self, name: str) -> Row | None:
        """The contestant of this name, if it was timed."""
        return next((row for row in self.rows if row.name == name and row.samples), None)

    def times_faster(self, name: str, than: str) -> float | None:
        """How many times faster: the median over rounds of the ratio in the same round."""
        ours, theirs = self.row(name), self.row(than)
        if ours is None or theirs is None:
            return None
        return statistics.median(b / a for a, b in zip(ours.samples, theirs.samples, strict=True))

    def verdict_on_auto(self) -> str:
        """Did "auto" take the best of our engines, in this run?"""
        ahead = {
            row.name.removeprefix(f"{OURS} "): ratio
            for row in self.rows
            if row.name.startswith(OURS) and row.name not in (AUTO, f"{OURS} {self.auto_engine}")
            if (ratio := self.times_faster(row.name, than=AUTO)) is not None and ratio > BEHIND
        }
        took = f"took {self.auto_engine}"
        compiled = 0.0 if self.auto_compiles else ahead.pop("flex", 0.0)
        beside = f" (flex, compiled: {compiled:.1f}x)" if compiled else ""
        if not ahead:
            return f"{took}: best{beside}"
        best = max(ahead, key=lambda name: ahead[name])
        return f"{took}: {ahead[best]:.1f}x behind {best}{beside}"


@dataclass
class Bench:
    """How to measure: where, in what dtype, and for how many rounds."""

    device: torch.device
    dtype: torch.dtype
    rounds: int
    # A sample is at least this long: shorter calls are repeated in it.
    sample_ms: float = 5.0
    # So many seconds, for each case and direction, it waits for other programs and takes disturbed rounds again.
    patience_s: float = 0.0
    progress: Progress = field(default=lambda text: None)

    def run(self, case: Case, contestants: list[Contestant]) -> Iterator[Outcome]:
        """The outcomes of a case: forward, then forward and backward where the case trains."""
        self.progress("the float64 reference")
        inputs = Inputs.of(case, self.device, self.dtype)
        judge = Judge.of(case, inputs)
        # What "auto" takes need not run twice; `blocks` does, and shows how much of a difference is noise.
        same = _auto_engine(case, inputs, backward=False)
        contestants = [each for each in contestants if not each.is_ours or each.engine != same or same == "blocks"]
        ready, first_ms, notes = {}, {}, {}
        for each in contestants:
            self.progress(f"preparing {each.name}")
            try:
                ready[each.name], first_ms[each.name] = self._first_call(each, case, inputs)
            except Exception as error:
                notes[each.name] = _skipped(error)
        for direction in (FORWARD, TRAINING) if case.trains else (FORWARD,):
            outcome = self._direction(direction, case, contestants, ready, judge, notes)
            rows = [replace(row, first_ms=first_ms.get(row.name)) for row in outcome.rows]
            yield replace(outcome, rows=rows) if direction == FORWARD else outcome

    def _first_call(self, contestant: Contestant, case: Case, inputs: Inputs) -> tuple[Attention, float]:
        start = time.perf_counter()
        attention = contestant.prepare(case, self.device)
        with torch.no_grad():
            attention(inputs.query, inputs.key, inputs.value)
        _wait(self.device)
        return attention, 1000 * (time.perf_counter() - start)

    def _direction(
        self,
        direction: str,
        case: Case,
        contestants: list[Contestant],
        ready: dict[str, Attention],
        judge: Judge,
        notes: dict[str, str],
    ) -> Outcome:
        backward, inputs = direction == TRAINING, judge.inputs
        contestants = [each for each in contestants if each.has_backward or not backward]
        rows, calls = {}, {}
        for each in contestants:
            if each.name not in ready:
                rows[each.name] = Row(each.name, note=notes[each.name])
                continue
            self.progress(f"{direction}: judging {each.name}")
            try:
                fault = judge.fault(ready[each.name], backward=backward)
            except Exception as error:
                rows[each.name] = Row(each.name, note=_skipped(error))
                continue
            if fault:
                rows[each.name] = Row(each.name, note=f"WRONG: {fault}", is_wrong=True)
            else:
                calls[each.name] = _call(ready[each.name], inputs, backward)
        number = max(1, self.rounds // 3) if case.is_long else self.rounds
        taken = interleaved(
            calls,
            rounds=number,
            device=self.device,
            at_least_ms=self.sample_ms,
            patience_s=self.patience_s,
            progress=self._in(direction),
        )
        for name, samples in taken.samples.items():
            rows[name] = Row(name, samples=tuple(samples))
        auto_engine = _auto_engine(case, inputs, backward)
        in_order = [rows[each.name] for each in contestants]
        return Outcome(case, direction, in_order, auto_engine, self.device.type != "cpu", number, taken.loud)

    def _in(self, direction: str) -> Progress:
        return lambda text: self.progress(f"{direction}: {text}")


def interleaved(
    calls: dict[str, Call],
    *,
    rounds: int,
    device: torch.device,
    at_least_ms: float = 0.0,
    patience_s: float = 0.0,
    progress: Progress = lambda text: None,
) -> Rounds:
    """Each call once a round, in an order that changes from round to round."""
    repeats = {name: _repeats(call, device, at_least_ms) for name, call in calls.items()}
    order, names, others = random.Random(0), list(calls), Neighbours()
    deadline = time.monotonic() + patience_s
    taken: list[dict[str, float]] = []
    loud = 0
    with _no_garbage_collection():
        while len(taken) < rounds:
            progress(f"round {len(taken) + 1} of {rounds}")
            # Who runs next finds the caches as the last one left them, so the order changes.
            order.shuffle(names)
            others.await_quiet(deadline)
            others.restart()
            samples = {name: sample_ms(calls[name], repeats[name], device) for name in names}
            # The choice looks at what other programs used, never at the times.
            was_loud = others.are_loud()
            if not was_loud or time.monotonic() >= deadline:
                taken.append(samples)
                loud += was_loud
    return Rounds({name: [samples[name] for samples in taken] for name in calls}, loud)


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
    sample_ms(call, 1, device)
    once = min(sample_ms(call, 1, device) for _ in range(3))
    return max(1, min(MOST_REPEATS, math.ceil(at_least_ms / max(once, 1e-6))))


def _call(attention: Attention, inputs: Inputs, backward: bool) -> Call:
    leaves = [x.detach().requires_grad_(backward) for x in (inputs.query, inputs.key, inputs.value)]

    def forward() -> object:
        with torch.no_grad():
            return attention(*leaves)

    def forward_and_backward() -> object:
        return torch.autograd.grad(attention(*leaves), leaves, inputs.d_out)

    return forward_and_backward if backward else forward


def _auto_engine(case: Case, inputs: Inputs, backward: bool) -> str:
    leaves = [x.detach().requires_grad_(backward) for x in (inputs.query, inputs.key, inputs.value)]
    with torch.set_grad_enabled(backward):
        return plan(*leaves, mask=case.make_mask()).engine


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
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
