"""The progress of a comparison: a bar per model with its loss; in a pipe, plain lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from rich.progress import Progress, TextColumn, TimeRemainingColumn

from rearview.cli.progress import LINES, AverageLoss, bars, clock, say
from rearview.cli.terminal import console
from rearview.comparison import ComparisonEvent, ExamProgress, SideEvent
from rearview.training import Started, TrainingStep

NAMES = {"with-mask": "with the mask", "without-mask": "without it"}
TASKS = {"exam": "exam", "text": "generating"}
# Steps are reported several at a time, and the first is slower: before this many there is no estimate of the time left.
FEWEST_STEPS = 10


def shown_comparison(events: Iterable[ComparisonEvent]) -> Iterator[ComparisonEvent]:
    """Yield the events, and show each."""
    columns = (TimeRemainingColumn(compact=True, elapsed_when_finished=True), TextColumn("{task.fields[status]}"))
    with bars(*columns) as progress:
        view = _Lines() if progress is None else _Bars(progress)
        for event in events:
            match event:
                case SideEvent(side, Started() as started):
                    view.start(side, started)
                case SideEvent(side, TrainingStep() as step):
                    view.step(side, step)
                case ExamProgress():
                    view.exam(event)
            yield event


class _Lines:
    def __init__(self) -> None:
        self.console = console()
        self.losses = {side: AverageLoss() for side in NAMES}
        self.steps, self.first, self.next_line, self.since = 1, 0, 0, time.monotonic()
        self.reported: set[tuple[str, str]] = set()

    def start(self, side: str, event: Started) -> None:
        self.steps, self.first, self.since = event.steps, event.step, time.monotonic()
        self.next_line = event.step

    def step(self, side: str, event: TrainingStep) -> None:
        self.losses[side].add(event.loss)
        if side != "without-mask" or (event.step < self.next_line and event.step < self.steps):
            return
        self.next_line = event.step + max(1, -(-self.steps // LINES))
        losses = "   ".join(
            f"{NAMES[side]} {loss.value:.3f}" for side, loss in self.losses.items() if loss.value is not None
        )
        took, done = time.monotonic() - self.since, event.step - self.first
        left = f"   {clock(took / done * (self.steps - event.step))} left" if done >= FEWEST_STEPS else ""
        say(self.console, f"step {event.step:>{len(str(self.steps))}}/{self.steps}   loss {losses}{left}")

    def exam(self, event: ExamProgress) -> None:
        if (event.side, event.task) not in self.reported:
            self.reported.add((event.side, event.task))
            say(self.console, f"{TASKS[event.task]}, {NAMES[event.side]}")


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.losses = {side: AverageLoss() for side in NAMES}
        self.tasks = {side: progress.add_task(f"{name:13}", total=None, status="") for side, name in NAMES.items()}

    def start(self, side: str, event: Started) -> None:
        self.progress.update(self.tasks[side], total=event.steps, completed=event.step)

    def step(self, side: str, event: TrainingStep) -> None:
        loss = self.losses[side].add(event.loss)
        self.progress.update(self.tasks[side], completed=event.step, status=f"loss {loss:.3f}")

    def exam(self, event: ExamProgress) -> None:
        name = f"{event.side} {event.task}"
        if name not in self.tasks:
            text = f"{TASKS[event.task]}, {NAMES[event.side]}"
            self.tasks[name] = self.progress.add_task(f"{text:13}", total=event.total, status="")
        self.progress.update(self.tasks[name], total=event.total, completed=event.done)
