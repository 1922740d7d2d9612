"""The progress of training: a bar with loss, speed and time left; in a pipe, plain lines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from rearview.cli.terminal import console
from rearview.drawing.cells import harmless
from rearview.training import Event, Sample, Saved, Started, TrainingStep, Validation

# The number of lines for a whole run, where there is no bar.
LINES = 20
# The training loss varies between batches; an exponential average with this weight is shown.
NEWEST = 0.1


class AverageLoss:
    """The training loss, averaged over the last steps.

    >>> loss = AverageLoss()
    >>> loss.add(2.0), loss.add(3.0)
    (2.0, 2.1)
    """

    def __init__(self) -> None:
        self.value: float | None = None

    def add(self, loss: float) -> float:
        """The average with one more loss."""
        self.value = loss if self.value is None else self.value + NEWEST * (loss - self.value)
        return self.value


@contextmanager
def bars(*columns: ProgressColumn, transient: bool = False, unit: str = "") -> Iterator[Progress | None]:
    """Progress bars with a name and these columns; None where the output is not a terminal."""
    if not console().is_terminal:
        yield None
        return
    # On a console of their own that knows its width: bars must not be wrapped.
    count = TextColumn("{task.completed:.0f}/{task.total}" + (f" {unit}" if unit else ""))
    shown = (TextColumn("{task.description}"), BarColumn(bar_width=24), count)
    with Progress(*shown, *columns, console=Console(highlight=False), transient=transient) as progress:
        yield progress


def say(paper: Console, text: str, style: str = "") -> None:
    """Print a line at once, for readers who follow a file."""
    paper.print(Text(text, style=style))
    paper.file.flush()


def clock(seconds: float) -> str:
    """
    >>> clock(75.2), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def reading(*, shown: bool = True) -> Iterator[Callable[[str, int, int], None]]:
    """Shows how far a large text has been read: a bar, or a line for each pass over it."""
    tasks: dict[str, TaskID] = {}
    lines: set[str] = set()
    with bars(TimeRemainingColumn(compact=True), transient=True, unit="MB") if shown else nullcontext() as progress:

        def report(doing: str, done: int, total: int) -> None:
            if progress is not None:
                if doing not in tasks:
                    tasks[doing] = progress.add_task(doing, total=round(total / 1e6, 1))
                progress.update(tasks[doing], completed=done / 1e6)
            elif shown and doing not in lines:
                lines.add(doing)
                say(console(), f"{doing}, {total / 1e6:,.0f} MB")

        yield report


def shown(events: Iterable[Event], *, tokens_per_step: int) -> Iterator[Event]:
    """Yield the events, and show each."""
    with bars(TextColumn("{task.fields[status]}"), transient=True) as progress:
        view = _View(progress, tokens_per_step)
        for event in events:
            view.show(event)
            yield event


class _View:
    def __init__(self, progress: Progress | None, tokens_per_step: int):
        self.console, self.progress, self.tokens_per_step = console(), progress, tokens_per_step
        self.task = TaskID(0) if progress is None else progress.add_task("training", total=1, status="")
        self.loss = AverageLoss()
        self.steps, self.next_line = 1, 0

    def show(self, event: Event) -> None:
        match event:
            case Started():
                self.steps, self.next_line = event.steps, event.step
                if self.progress:
                    self.progress.update(self.task, total=event.steps, completed=event.step)
            case TrainingStep():
                self._step(event)
            case Validation():
                bits = f"{event.bits_per_character:.3f} bits per character"
                self._say(event.step, f"validation loss {event.loss:.4f}  {bits}", "bold")
            case Sample():
                self._say(event.step, "sample:", "dim")
                say(self.console, harmless(event.text, keep="\n\t") + "\n", "cyan")
            case Saved(step=step) if step:
                self._say(step, f"saved {event.path}", "dim")

    def _step(self, event: TrainingStep) -> None:
        left = (self.steps - event.step) * self.tokens_per_step / event.tokens_per_second
        loss = self.loss.add(event.loss)
        status = f"loss {loss:.4f}  {event.tokens_per_second:,.0f} tokens/s  {clock(left)} left"
        if self.progress:
            self.progress.update(self.task, completed=event.step, status=status)
        elif event.step >= self.next_line:
            self.next_line = event.step + max(1, self.steps // LINES)
            self._say(event.step, status, "")

    def _say(self, step: int, text: str, style: str) -> None:
        say(self.console, f"step {step:>{len(str(self.steps))}}/{self.steps}  {text}", style)
