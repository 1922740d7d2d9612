"""A comparison on the terminal: a bar for each model with its loss; in a pipe, plain lines now and then."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rearview.cli.progress import clock
from rearview.cli.terminal import console as plain_console
from rearview.training import Started, Step
from rearview.training.comparison import Happening, Trained
from rearview.training.comparison import Progress as Part

NAMES = {"with-mask": "with the mask", "without-mask": "without it"}
DOING = {"exam": "exam", "writing": "writing"}
# Lines of a whole training, where there are no bars.
LINES = 20
# Steps are told several at a time, and the first of all takes longer: an earlier guess of the time left is none.
FEWEST_STEPS = 10
# A training loss jumps from batch to batch; what is shown is this share of the last, and the rest of before.
NEWNESS = 0.1


def watched(happenings: Iterable[Happening]) -> Iterator[Happening]:
    """Hand on what happens, and show it on the way."""
    console = plain_console()
    with _view(console) as view:
        for happening in happenings:
            match happening:
                case Trained(side, Started() as started):
                    view.begin(side, started)
                case Trained(side, Step() as step):
                    view.step(side, step)
                case Part():
                    view.part(happening)
            yield happening


class Losses:
    """The training loss of each side as it is shown."""

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}

    def add(self, side: str, loss: float) -> float:
        before = self.shown.get(side, loss)
        self.shown[side] = before + NEWNESS * (loss - before)
        return self.shown[side]


class _Lines:
    def __init__(self, console: Console) -> None:
        self.console, self.losses = console, Losses()
        self.steps, self.first, self.next_line, self.since = 1, 0, 0, time.monotonic()
        self.told: set[tuple[str, str]] = set()

    def begin(self, side: str, event: Started) -> None:
        self.steps, self.first, self.since = event.steps, event.step, time.monotonic()
        self.next_line = event.step

    def step(self, side: str, event: Step) -> None:
        self.losses.add(side, event.loss)
        if side != "without-mask" or (event.step < self.next_line and event.step < self.steps):
            return
        self.next_line = event.step + max(1, -(-self.steps // LINES))
        losses = "   ".join(f"{NAMES[side]} {loss:.3f}" for side, loss in self.losses.shown.items())
        took, done = time.monotonic() - self.since, event.step - self.first
        left = f"   {clock(took / done * (self.steps - event.step))} left" if done >= FEWEST_STEPS else ""
        self._say(f"step {event.step:>{len(str(self.steps))}}/{self.steps}   loss {losses}{left}")

    def part(self, part: Part) -> None:
        if (part.side, part.doing) not in self.told:
            self.told.add((part.side, part.doing))
            self._say(f"{DOING[part.doing]}, {NAMES[part.side]}")

    def _say(self, text: str) -> None:
        self.console.print(text)
        # A file that somebody follows should have the line now.
        self.console.file.flush()


class _Bars:
    def __init__(self, progress: Progress) -> None:
        self.progress, self.losses = progress, Losses()
        self.tasks = {side: progress.add_task(f"{name:13}", total=None, said="") for side, name in NAMES.items()}

    def begin(self, side: str, event: Started) -> None:
        self.progress.update(self.tasks[side], total=event.steps, completed=event.step)

    def step(self, side: str, event: Step) -> None:
        loss = self.losses.add(side, event.loss)
        self.progress.update(self.tasks[side], completed=event.step, said=f"loss {loss:.3f}")

    def part(self, part: Part) -> None:
        name = f"{part.side} {part.doing}"
        if name not in self.tasks:
            said = f"{DOING[part.doing]}, {NAMES[part.side]}"
            self.tasks[name] = self.progress.add_task(f"{said:13}", total=part.total, said="")
        self.progress.update(self.tasks[name], total=part.total, completed=part.done)


@contextmanager
def _view(console: Console) -> Iterator[_Lines | _Bars]:
    if not console.is_terminal:
        yield _Lines(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total}"),
        TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        TextColumn("{task.fields[said]}"),
    )
    # The bars are on a console of their own that knows its width: they must not be folded.
    with Progress(*columns, console=Console(highlight=False)) as progress:
        yield _Bars(progress)
