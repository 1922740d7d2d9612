"""What `rearview compare` and `rearview demo` do: run a comparison, show its progress, and present the result."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from rearview.cli.commands import words_of
from rearview.cli.compare_progress import shown_comparison
from rearview.cli.interrupt import Interrupt
from rearview.cli.progress import reading
from rearview.cli.terminal import console, show
from rearview.comparison import Comparison, ComparisonConfig, ComparisonFinished, ComparisonRun, load, save
from rearview.comparison.experiment import WITH, WITHOUT
from rearview.comparison.folder import RESULT
from rearview.comparison.summary import summary
from rearview.drawing.cells import counted
from rearview.errors import BadArgument
from rearview.training.processes.world import is_one_of_several


def check_alone() -> None:
    """Refuse several processes: each would run the same comparison in the same folder."""
    if is_one_of_several():
        size = os.environ["WORLD_SIZE"]
        advice = 'Start it without torchrun. For several processes: rearview train, and again with --mask "none".'
        raise BadArgument("rearview compare", expected="one process", got=f"one of {size}", advice=advice)


def start_comparison(
    settings: Mapping[str, object], given: Mapping[str, object], out: Path, *, before_report: Callable[[], None] = print
) -> int:
    """Run a new comparison; the exit code. `given` are the settings that its command names."""
    values = {**settings, "command": command_of(given)}
    if values.get("warmup", 0) is None and isinstance(steps := values["steps"], int):
        values["warmup"] = min(50, steps // 10)
    with reading() as progress:
        run = ComparisonRun.start(ComparisonConfig.from_json(values), out, progress=progress)
    return _run(run, before_report)


def resume_comparison(out: Path) -> int:
    """Resume a comparison, or present it if it is finished; the exit code."""
    if (out / RESULT).exists():
        print(f"The comparison in {out} is finished. This is its result.")
        present(out)
        return 0
    with reading() as progress:
        run = ComparisonRun.resume(out, progress=progress)
    return _run(run, print)


def present(out: Path) -> None:
    """Print the result in a folder, and write its report again."""
    comparison = load(out)
    save(comparison, out)
    _present(comparison, out, print)


def command_of(given: Mapping[str, object]) -> str:
    """The command line with these options.

    >>> command_of({"text": "my book.txt", "new_tokens": 9})
    "rearview compare --text 'my book.txt' --new-tokens 9"
    """
    return shlex.join(["rearview", "compare", *words_of(given)])


def _run(run: ComparisonRun, before_report: Callable[[], None]) -> int:
    config, data = run.config, run.data
    console().print(
        f"Training the same GPT twice, with the mask and without it: {counted(config.layers, 'layer', 'layers')}, "
        f"{counted(config.heads, 'head', 'heads')}, width {config.width}, context {config.context}, {config.steps} "
        f"steps each.\nText: {run.text_name}, {data.characters:,} characters; the last {len(data.validation):,} tokens "
        "are held out."
    )
    with Interrupt("Finishing the step and saving") as interrupt:
        *_, last = shown_comparison(run.compare(stop=interrupt))
    if not isinstance(last, ComparisonFinished):
        print(f"Stopped, and saved both runs. To resume: rearview compare --resume {run.out}")
        return 128 + (interrupt.signal or 2)
    _present(last.comparison, run.out, before_report)
    return 0


def _present(comparison: Comparison, out: Path, before_report: Callable[[], None]) -> None:
    """Print the summary; the last line says where the report is."""
    print()
    paper = console()
    show(summary(comparison, columns=paper.width if paper.is_terminal else 100))
    before_report()
    print(f"To generate text: rearview generate {out / WITH}, or rearview generate {out / WITHOUT}")
    print(f"Report: {(out / 'report.html').resolve()}")
    sys.stdout.flush()
