"""Suffix swap: change everything that a position must not hear; its output must not move by one bit.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import suffix_swap
>>> from rearview.auditing.context import AuditContext
>>> suffix_swap.run(AuditContext.of(lambda x: x + x.mean(1, keepdim=True), torch.randn(1, 8), causal())).check.status
'failed'

For `causal()` and a cut t this swaps the suffix after t, and watches positions 0..t. For any other contract it changes
everything that the row of the cut forbids, and watches all rows that may hear none of it.
"""

from __future__ import annotations

import torch

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.contract import in_words
from rearview.auditing.evidence.probe import Prober
from rearview.auditing.evidence.search import Search, search
from rearview.auditing.reporting.report import Check
from rearview.drawing.cells import counted

NAME = "suffix swap"
DRAWS = {False: 2, True: 6}
MOST_CUTS = {False: 32, True: 256}


def run(context: AuditContext) -> Outcome:
    if context.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{context.contract.mask!r} forbids nothing at this length"))
    found = swapped(context, check=NAME, draws=DRAWS[context.full])
    cuts = len(cuts_of(context))
    return outcome(NAME, found, f"at {counted(cuts, 'cut', 'cuts')}", {"cuts": cuts})


def swapped(context: AuditContext, *, check: str, draws: int, prober: Prober | None = None) -> Search:
    """Search over the cuts, for each batch item to examine; `prober` runs another subject than the given one."""
    found = Search()
    for item in context.items:
        rows = context.contract.forbidden[item][cuts_of(context)]
        rows = rows[rows.any(-1)]
        if len(rows):
            found = found.merged(search(context, rows, item=item, draws=draws, check=check, prober=prober))
        if found.leak is not None:
            break
    return found


def cuts_of(context: AuditContext) -> list[int]:
    cuts = context.contract.cuts()
    most = MOST_CUTS[context.full]
    if len(cuts) <= most:
        return cuts
    # Evenly spaced, with the first and the last.
    chosen = torch.linspace(0, len(cuts) - 1, most).round().long().unique()
    return [cuts[n] for n in chosen.tolist()]


def outcome(name: str, found: Search, where: str, numbers: dict[str, int] | None = None) -> Outcome:
    """The result of a search as the outcome of a check."""
    measured = {**(numbers or {}), **found.numbers}
    if found.leak is not None:
        leak = found.leak
        heard = in_words(leak.sources) if leak.kind == "time" else "other items of the batch"
        why = f"position {leak.query} moved by {leak.amount:.3g} when {heard} changed"
        return Outcome(Check(name, "failed", why, measured), leak)
    if found.unclear:
        return Outcome(Check(name, "inconclusive", found.unclear, measured))
    if not found.trials or found.unusable == found.trials:
        return Outcome(Check(name, "inconclusive", "in every trial an output became NaN or infinite", measured))
    if not found.alive:
        why = "no output moved at all when the inputs changed, so no leak could have been seen"
        return Outcome(Check(name, "inconclusive", why, measured))
    noise = f"; differences up to {found.noise:.2g} are rounding" if found.noise else ", bit for bit"
    if found.chance:
        noise = "; random draws whose number depends on the data were fixed"
    return Outcome(
        Check(name, "passed", f"nothing moved in {counted(found.trials, 'trial', 'trials')} {where}{noise}", measured)
    )
