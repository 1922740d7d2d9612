"""Load and faults: what was tried, how often, and what was lost. Nothing is timed.

python -m bench soak --minutes 10
python -m bench soak --cases kills,power --minutes 60 --seed 7
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from bench.harness import Case, Report, Settings, Suite, Task
from bench.soak import attend_calls, damaged_files, killed_ranks, long_loops, power_cuts, sanitizers
from bench.soak.experiment import Experiment, Session, Tally
from bench.soak.training_faults import DOUBLE_STARTS, FILE_FAULTS, FULL_DISKS, KILLS
from bench.table import Table

EXPERIMENTS = (
    attend_calls.EXPERIMENT,
    KILLS,
    FILE_FAULTS,
    power_cuts.EXPERIMENT,
    killed_ranks.EXPERIMENT,
    damaged_files.EXPERIMENT,
    FULL_DISKS,
    DOUBLE_STARTS,
    long_loops.GENERATION,
    long_loops.STUDIO,
    sanitizers.EXPERIMENT,
)
MINUTES = 10.0


class Soak(Suite):
    name, title, suffix = "soak", "Load and faults", "-soak"

    def __init__(self) -> None:
        # They are filled while the experiments run, so what was done before Ctrl-C is reported.
        self.tallies: dict[str, Tally] = {}

    def options(self, add: Callable[..., object]) -> None:
        add("--minutes", type=float, default=MINUTES, help=f"for all experiments together (default {MINUTES:g})")
        add("--seed", type=int, default=None, help="of the random choices (default: another one every time)")

    def items(self, args: argparse.Namespace) -> list[Case | Task]:
        if args.seed is None:
            args.seed = random.SystemRandom().getrandbits(31)
        self.tallies.clear()
        shares = sum(each.share for each in EXPERIMENTS if _is_chosen(each, args))

        def run(each: Experiment, settings: Settings) -> Tally:
            tally = self.tallies[each.name] = Tally()
            end = time.monotonic() + 60 * args.minutes * each.share / shares
            draw = random.Random(f"{each.name} {args.seed}")
            most = each.quick if args.quick else float("inf")
            return each.run(Session(draw, end, most, settings.progress), tally)

        return [Task(each.name, partial(run, each)) for each in EXPERIMENTS]

    def report(self, args: argparse.Namespace, results: Sequence[object]) -> Report:
        done = [(each, self.tallies[each.name]) for each in EXPERIMENTS if each.name in self.tallies]
        rows = [
            (each.name, f"{tally.trials:,}", f"{tally.failed:,}", f"{tally.seconds:.0f}", _told(tally))
            for each, tally in done
        ]
        table = Table(("experiment", "trials", "failures", "seconds", "what was done"), rows, last_is_words=True)
        promises = [f"{each.name}: {each.promise}" for each, _ in done]
        lines = [(each.name, " / ".join(text.splitlines())) for each, tally in done for text in tally.failures]
        failures = [f"FAILED: {name}: `{text}`" for name, text in lines]
        about = [f"seed {args.seed}, {args.minutes:g} minutes", *promises]
        verdicts = failures or ["met: no failure"]
        return Report(about, [("", table)], verdicts, is_wrong=any(tally.failed for _, tally in done))


def _is_chosen(experiment: Experiment, args: argparse.Namespace) -> bool:
    """Whether the time is to be shared with this one, as --cases says; the harness chooses the same."""
    words = [word.strip().lower() for word in args.cases.split(",")] if args.cases else [""]
    return any(word in experiment.name for word in words)


def _told(tally: Tally) -> str:
    if tally.missing:
        return f"not run: {tally.missing}"
    return "; ".join(f"{count:,} {what}" for what, count in (*tally.tried.items(), *tally.found.items()))


SUITES = (Soak(),)
