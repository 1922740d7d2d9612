"""What `rearview compare` does before and after: options into text and settings, the summary, where everything is."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from rearview.cli.compare_progress import watched
from rearview.cli.interrupt import Interrupt
from rearview.cli.terminal import console, show
from rearview.errors import BadArgument, MissingExtra
from rearview.masks.labels import counted
from rearview.masks.write import write_whole
from rearview.training import TextData, TrainConfig, read_texts
from rearview.training.comparison import Comparison, Found, Happening, Settings, comparing, short_training
from rearview.training.comparison.folder import WITH, WITHOUT, keep_asked, made, save
from rearview.training.comparison.summary import summary
from rearview.training.sources import STDIN
from rearview.training.start import new_tokenizer

# What is not asked for in other words; the rest has its defaults in `Settings` and `short_training`.
DEFAULTS: dict[str, Any] = {
    "text": None, "separator": None, "encoding": "utf-8", "validation": 0.1, "tokenizer": "chars", "vocab_size": None,
    "threads": None,
}  # fmt: skip
OWN_TEXT = "Python's reference text (pydoc_data.topics)"
KEPT_TEXT = "text.txt"


@dataclass(frozen=True)
class Prepared:
    """All that a comparison needs."""

    data: TextData
    settings: Settings
    name: str
    command: str


def prepare(asked: dict[str, Any], *, command: str, out: Path) -> Prepared:
    """The text in tokens, and the settings; what cannot be is said here. What is needed to go on is written down."""
    asked = {**DEFAULTS, **asked}
    _check_extra()
    settings = settings_of(asked)
    threads = asked["threads"]
    if threads is not None:
        if threads < 1:
            raise BadArgument("--threads", expected="a number of at least 1", came=threads)
        torch.set_num_threads(threads)
    documents = read_texts(asked["text"], separator=asked["separator"], encoding=asked["encoding"])
    if asked["text"] == STDIN:
        # What came through a pipe is gone when the command goes on; a copy is kept.
        kept = made(out) / KEPT_TEXT
        write_whole(kept, (asked["separator"] or "").join(document.text for document in documents).encode())
        asked["text"], asked["encoding"] = os.path.abspath(kept), "utf-8"
    texts = [document.text for document in documents]
    tokenizer = new_tokenizer(asked["tokenizer"], texts, context=settings.context, vocab_size=asked["vocab_size"])
    data = TextData.of(documents, tokenizer, validation=asked["validation"])
    data.check_context(settings.context)
    keep_asked(out, {**asked, "threads": torch.get_num_threads(), "command": command})
    return Prepared(data, settings, asked["text"] or OWN_TEXT, command)


def settings_of(asked: dict[str, Any]) -> Settings:
    training = {each.name for each in fields(TrainConfig)} - {"context"}
    own = {each.name for each in fields(Settings)} - {"training"}
    return Settings(
        **{name: value for name, value in asked.items() if name in own},
        training=short_training(**{name: value for name, value in asked.items() if name in training}),
    )


def command_of(given: dict[str, Any]) -> str:
    """The command line that asks for this.

    >>> command_of({"text": "my book.txt", "new_tokens": 9})
    "rearview compare --text 'my book.txt' --new-tokens 9"
    """
    words = [word for name, value in given.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    return shlex.join(["rearview", "compare", *words])


def finish(prepared: Prepared, out: Path, *, before_report: Callable[[], None] = lambda: None) -> int:
    """Train and examine with progress, then present what was found; the exit code."""
    data, settings = prepared.data, prepared.settings
    console().print(
        f"The same GPT twice, with the mask and without it: "
        f"{counted(settings.layers, 'layer', 'layers')}, {counted(settings.heads, 'head', 'heads')}, width "
        f"{settings.width}, context {settings.context}, {settings.training.steps} steps each.\n"
        f"Text: {prepared.name}, {data.characters:,} characters; the last {len(data.validation):,} tokens are held out."
    )
    with Interrupt("Finishing the step and saving") as stop:
        happenings = comparing(data, settings, name=prepared.name, command=prepared.command, out=out, stop=stop)
        last = last_of(watched(happenings))
    if not isinstance(last, Found):
        print(f"Stopped; both runs are saved. To go on: rearview compare --resume {out}")
        return 128 + (stop.signal or 2)
    present(last.comparison, out, before_report=before_report)
    return 0


def last_of(happenings: Iterable[Happening]) -> Happening:
    *_, last = happenings
    return last


def present(comparison: Comparison, out: Path, *, before_report: Callable[[], None] = lambda: None) -> None:
    """Save it, print the summary; the last line says where the report is."""
    report = save(comparison, out)
    print()
    paper = console()
    show(summary(comparison, columns=paper.width if paper.is_terminal else 100))
    before_report()
    print(f"\nTalk to either: rearview generate {out / WITH}, rearview generate {out / WITHOUT}")
    print(f"The report, to open in a browser: {report.resolve()}")
    sys.stdout.flush()


def _check_extra() -> None:
    # Better now than after a minute of training.
    try:
        import safetensors  # noqa: F401
    except ImportError as error:
        raise MissingExtra("safetensors", extra="models", needed_for="Comparing") from error
