"""Suffix swap: change everything that a position may not hear, at the same length; it must not move by one bit.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import swap
>>> from rearview.audit.trial import Trial
>>> swap.run(Trial.of(lambda x: x + x.mean(1, keepdim=True), torch.randn(1, 8), causal())).check.status
'failed'

For `causal()` and a cut t this swaps the suffix after t, and watches positions 0..t. For any other contract it changes
all that the row of the cut forbids, and watches every row that may hear none of it.
"""

from __future__ import annotations

import torch

from rearview.audit.report import Check
from rearview.audit.search import Search, search
from rearview.audit.trial import Outcome, Trial
from rearview.masks.labels import counted

NAME = "suffix swap"
DRAWS = {False: 2, True: 6}
MOST_CUTS = {False: 32, True: 256}


def run(trial: Trial) -> Outcome:
    if trial.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{trial.contract.mask!r} forbids nothing at this length"))
    found = swapped(trial, check=NAME, draws=DRAWS[trial.full])
    cuts = len(cuts_of(trial))
    return outcome(NAME, found, f"at {counted(cuts, 'cut', 'cuts')}", {"cuts": cuts})


def swapped(trial: Trial, *, check: str, draws: int, prober=None) -> Search:
    """The search over the cuts, for each kind of batch item; `prober` to ask another subject."""
    found = Search()
    for item in trial.items:
        rows = trial.contract.forbidden[item][cuts_of(trial)]
        rows = rows[rows.any(-1)]
        if len(rows):
            found = found.joined(search(trial, rows, item=item, draws=draws, check=check, prober=prober))
        if found.leak is not None:
            break
    return found


def cuts_of(trial: Trial) -> list[int]:
    cuts = trial.contract.cuts()
    most = MOST_CUTS[trial.full]
    if len(cuts) <= most:
        return cuts
    # The first and the last matter most; the rest is thinned out evenly.
    chosen = torch.linspace(0, len(cuts) - 1, most).round().long().unique()
    return [cuts[n] for n in chosen.tolist()]


def outcome(name: str, found: Search, where: str, numbers: dict[str, int] | None = None) -> Outcome:
    """A search as the answer to a check."""
    measured = {**(numbers or {}), **found.numbers}
    if found.leak is not None:
        leak = found.leak
        heard = f"position {leak.sources[0]}" if len(leak.sources) == 1 else _named(leak.sources)
        heard = heard if leak.kind == "time" else "other items of the batch"
        why = f"position {leak.query} moved by {leak.amount:.3g} when {heard} changed"
        return Outcome(Check(name, "failed", why, measured), leak)
    if found.unclear:
        return Outcome(Check(name, "inconclusive", found.unclear, measured))
    if not found.trials or found.unusable == found.trials:
        return Outcome(Check(name, "inconclusive", "every trial ended in numbers that are not finite", measured))
    if not found.alive:
        why = "no output moved at all when the inputs changed, so nothing could have been seen"
        return Outcome(Check(name, "inconclusive", why, measured))
    noise = f"; differences up to {found.noise:.2g} are rounding" if found.noise else ", bit for bit"
    return Outcome(
        Check(name, "passed", f"nothing moved in {counted(found.trials, 'trial', 'trials')} {where}{noise}", measured)
    )


def _named(sources: tuple[int, ...]) -> str:
    first, last = sources[0], sources[-1]
    if last - first + 1 == len(sources):
        return f"positions {first} to {last}"
    return f"{len(sources)} positions from {first} to {last}"
