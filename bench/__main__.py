"""`python -m bench SUITE...`: measure, print, check the targets, keep the dated file."""

from __future__ import annotations

import argparse
import gc
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date
from importlib import import_module

import torch

from bench import results
from bench.harness import Case, Outcome, Report, Settings, Suite, Task
from bench.noise import Neighbours

# The module of each suite, which is imported when the suite is named.
MODULES = {
    **{name: name for name in ("attention", "lowering", "native", "parallel", "scaling", "serving", "trees")},
    **{name: name for name in ("training", "generation", "speculation")},
    **{name: name for name in ("statistics", "statistics_gpu", "observe", "gpu", "versions")},
    **{name: name for name in ("audit_sweep", "audit_ops", "transformers_sweep", "soak")},
    "decode": "attention",
}
# The suites that have speed targets; the sweeps have none.
PROMISED = (
    *("attention", "lowering", "native", "scaling", "serving", "trees"),
    *("training", "generation", "speculation", "statistics"),
)
WRONG, CANNOT_RUN, STOPPED = 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Return 1 if Rearview gave a wrong answer, 2 if a suite cannot run here, 130 if stopped by Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    named = words[: next((n for n, word in enumerate(words) if word.startswith("-")), len(words))]
    # Options alone mean the attention suite; no arguments mean every suite with targets.
    suites = [suite_named(name) for name in named or (["attention"] if words else PROMISED) if name in MODULES]
    parser = parser_for(suites)
    if unknown := sorted(set(named) - set(MODULES)):
        parser.error(f"no suite {', '.join(map(repr, unknown))}. There are: {', '.join(MODULES)}")
    args = parser.parse_args(words)
    if args.threads:
        torch.set_num_threads(args.threads)
    code = 0
    for suite in suites:
        if len(suites) > 1:
            print(f"\n{suite.name}\n")
        code = max(code, measured(suite, args, parser))
        if code == STOPPED:
            break
    return code


def measured(suite: Suite, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run one suite, print its results, and keep them if the run is complete."""
    if reason := suite.missing(args):
        print(f"{suite.name}: {reason}", file=sys.stderr)
        return CANNOT_RUN
    device = suite.device(args)
    machine, start, neighbours = results.Machine.here(device), time.monotonic(), Neighbours()
    items = chosen(suite.items(args), args.cases, parser)
    suite.expect(items)
    found, was_stopped = _run(items, Settings(device, patience_s=args.patient))
    report = suite.report(args, found)
    outcomes = [each for each in found if isinstance(each, Outcome)]
    about = [*machine.lines(torch.get_num_threads()), *report.about]
    about.append(noise(outcomes, neighbours.share(), seconds=time.monotonic() - start, patient=args.patient > 0))
    report = replace(report, about=about)
    _show(report)
    if suite.is_whole(args) and not was_stopped and not args.no_save:
        name = results.file_name(machine, today=date.today(), suffix=suite.file_suffix(args))
        results.write(results.RESULTS / name, document(suite.title, report))
        print(f"\nkept in bench/results/{name}")
    elif not args.no_save:
        print("\nnot kept: only complete runs without --quick are kept.")
    return STOPPED if was_stopped else WRONG if report.is_wrong else 0


def suite_named(name: str) -> Suite:
    module = import_module(f"bench.suites.{MODULES[name]}")
    return next(suite for suite in module.SUITES if suite.name == name)


def chosen(items: list[Case | Task], wanted: str | None, parser: argparse.ArgumentParser) -> list[Case | Task]:
    """The cases with one of the names, ignoring spelling details; or else the cases whose names contain the words."""
    if not wanted:
        return items
    names = {item.name: _loosely(item.name) for item in items if not (isinstance(item, Task) and item.always)}
    picked: set[str] = set()
    for word in map(_loosely, wanted.split(",")):
        equal = {name for name, loose in names.items() if loose == word}
        found = equal or {name for name, loose in names.items() if word in loose}
        if not found:
            parser.error(f"--cases: no case {word!r}. There are: {', '.join(names)}")
        picked |= found
    return [item for item in items if item.name in picked or (isinstance(item, Task) and item.always)]


def noise(outcomes: Sequence[Outcome], share: float | None, *, seconds: float = 0.0, patient: bool = False) -> str:
    """The duration of a run, and how much other programs disturbed it.

    >>> noise([Outcome(Case("a", list), [], rounds=10, loud=5)], 0.2, seconds=3)
    'it took 3 s; other programs used 20 % of the processors, and disturbed 5 of 10 rounds: DO NOT TRUST these times'
    """
    took = f"it took {seconds:.0f} s; "
    if share is None:
        return took + "the processor time of other programs is not known on this system"
    told = f"{took}other programs used {100 * share:.0f} % of the processors"
    loud, rounds = sum(each.loud for each in outcomes), sum(each.rounds for each in outcomes)
    if rounds:
        told += f", and disturbed {loud} of {rounds} rounds"
        told += " that were kept (others were taken again)" * patient
    return told + (": DO NOT TRUST these times" if loud > rounds // 4 else "")


def document(title: str, report: Report) -> str:
    """The dated page, in Markdown."""
    parts = [f"# {title}, {date.today().isoformat()}", "\n".join(f"- {line}" for line in report.about)]
    parts += [f"## {name}\n\n{table.markdown()}" if name else table.markdown() for name, table in report.tables]
    parts += [report.legend] * bool(report.legend)
    if report.verdicts:
        parts.append("## targets\n\n" + "\n".join(f"- {line}" for line in report.verdicts))
    return "\n\n".join(parts) + "\n"


def _show(report: Report) -> None:
    print("\n".join(report.about))
    for title, table in report.tables:
        print(f"\n{title}\n" if title else "")
        table.show()
    if report.legend:
        print("", textwrap.fill(report.legend, 116), sep="\n")
    if report.verdicts:
        print("\ntargets\n", *report.verdicts, sep="\n")


def _run(items: Sequence[Case | Task], settings: Settings) -> tuple[list[object], bool]:
    """The results of the items. Ctrl-C stops the run and keeps the finished items."""
    found: list[object] = []
    was_stopped = False
    with _line() as line:
        try:
            for number, item in enumerate(items, 1):
                line.start(f"[{number}/{len(items)}] {item.title}")
                # Garbage of earlier cases must not be collected while this one is timed.
                gc.collect()
                result = item.run(replace(settings, progress=line.add))
                was_stopped = isinstance(result, Outcome) and result.was_stopped
                if not was_stopped or (isinstance(result, Outcome) and result.rounds):
                    found.append(result)
                if was_stopped:
                    break
        except KeyboardInterrupt:
            was_stopped = True
    if was_stopped:
        print("stopped; the finished cases follow", file=sys.stderr)
    return found, was_stopped


@dataclass
class Line:
    """A progress line on stderr that is overwritten, or one line per item if stderr is not a terminal."""

    on_terminal: bool
    place: str = ""

    def start(self, place: str) -> None:
        self.place = place
        if not self.on_terminal:
            print(place, file=sys.stderr, flush=True)

    def add(self, text: str) -> None:
        if self.on_terminal:
            print(f"\r\033[K{self.place}: {text}", end="", file=sys.stderr, flush=True)


@contextmanager
def _line() -> Iterator[Line]:
    line = Line(sys.stderr.isatty())
    try:
        yield line
    finally:
        if line.on_terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def _loosely(name: str) -> str:
    """The same for "prefix-LM" and "Prefix LM"."""
    return " ".join(re.split(r"[-_ ]+", name.strip().lower()))


def parser_for(suites: Sequence[Suite]) -> argparse.ArgumentParser:
    """The common options, and those of the named suites."""
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        # Two suites may both have a --length.
        conflict_handler="resolve",
        description="Measure side by side with what a user would choose instead, interleaved in one run.",
        epilog=f"Suites: {', '.join(MODULES)}. Without words: {', '.join(PROMISED)}. With options alone: attention.",
    )
    add = parser.add_argument
    add("suites", nargs="*", metavar="SUITE", help="suites to measure; SUITE --help shows the options of a suite")
    add("--quick", action="store_true", help="small sizes and few rounds; keeps no file")
    add("--cases", "--only", metavar="A,B", help="run only these cases; an unknown name lists them all")
    add("--rounds", type=_positive, help="number of samples per contestant")
    add(
        "--patient",
        type=_positive,
        nargs="?",
        const=300,
        default=0,
        metavar="SECONDS",
        help="on a shared machine: for each case wait up to this long (300 unless given) for other programs to be "
        "quiet, and take the rounds that they disturb again",
    )
    add("--threads", type=_positive, help="threads of torch (default: its own choice)")
    add("--no-save", action="store_true", help="keep no file in bench/results/")
    for suite in suites:
        suite.options(add)
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
