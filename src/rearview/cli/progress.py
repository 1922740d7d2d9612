"""A run on the terminal: a bar with loss, speed and time left; in a pipe, plain lines now and then."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from rearview.cli.terminal import console as plain_console
from rearview.training import Event, Sample, Saved, Started, Step, Validation

# Lines of a whole run, where there is no bar.
LINES = 20
# A training loss jumps from batch to batch; what is shown is this share of the last, and the rest of before.
NEWNESS = 0.1


def shown(events: Iterable[Event], *, tokens_a_step: int, label: str = "") -> Iterator[Event]:
    """Hand events on, and show each on the way. `label` stands before everything, where there are several runs."""
    console = plain_console()
    with _bar(console, label) as bar:
        view = _View(console, bar, tokens_a_step, label)
        for event in events:
            view.show(event)
            yield event


class _View:
    def __init__(self, console: Console, bar: tuple[Progress, TaskID] | None, tokens_a_step: int, label: str):
        self.console, self.bar, self.tokens_a_step = console, bar, tokens_a_step
        self.label = f"{label}  " if label else ""
        self.loss: float | None = None
        self.steps, self.next_line = 1, 0

    def show(self, event: Event) -> None:
        match event:
            case Started():
                self.steps, self.next_line = event.steps, event.step
                if self.bar:
                    self.bar[0].update(self.bar[1], total=event.steps, completed=event.step)
            case Step():
                self._step(event)
            case Validation():
                bits = f"{event.bits_per_character:.3f} bits a character"
                self._say(f"{self._at(event.step)}  validation {event.loss:.4f}  {bits}", "bold")
            case Sample():
                self._say(f"{self._at(event.step)}  sample:", "dim")
                self._say(_printable(event.text) + "\n", "cyan")
            case Saved(step=step) if step:
                self._say(f"{self._at(step)}  saved {event.path}", "dim")

    def _step(self, event: Step) -> None:
        self.loss = event.loss if self.loss is None else self.loss + NEWNESS * (event.loss - self.loss)
        left = (self.steps - event.step) * self.tokens_a_step / event.tokens_per_second
        said = f"loss {self.loss:.4f}  {event.tokens_per_second:,.0f} tokens/s  {clock(left)} left"
        if self.bar:
            self.bar[0].update(self.bar[1], completed=event.step, said=said)
        elif event.step >= self.next_line:
            self.next_line = event.step + max(1, self.steps // LINES)
            self._say(f"{self._at(event.step)}  {said}", "")

    def _at(self, step: int) -> str:
        return f"{self.label}step {step:>{len(str(self.steps))}}/{self.steps}"

    def _say(self, text: str, style: str) -> None:
        self.console.print(Text(text, style=style))
        # A file that somebody follows should have the line now.
        self.console.file.flush()


@contextmanager
def _bar(console: Console, label: str) -> Iterator[tuple[Progress, TaskID] | None]:
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[said]}"),
    )
    # The bar is on a console of its own that knows its width: it must not be folded.
    with Progress(*columns, console=Console(highlight=False), transient=True) as progress:
        yield progress, progress.add_task(label or "training", total=1, said="")


def clock(seconds: float) -> str:
    """
    >>> clock(75.2), clock(3675)
    ('1:15', '1:01:15')
    """
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _printable(text: str) -> str:
    """What a model writes may hold anything; a terminal must not obey it."""
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)
