"""A longer input: the suffix swap where windows and chunks of the model have room to go wrong.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import longer
>>> from rearview.audit.trial import Trial
>>> def model(x):    # chunks of 16 hear each other from the third on
...     return x if x.shape[1] <= 32 else x + x[:, -1:]
>>> longer.run(Trial.of(model, torch.randn(1, 12), causal(), full=True)).check.status
'failed'
"""

from __future__ import annotations

import torch

from rearview.audit.checks.swap import outcome
from rearview.audit.contract import sizes_of
from rearview.audit.noise import brief
from rearview.audit.report import Check
from rearview.audit.search import Search, search
from rearview.audit.trial import Outcome, Trial

NAME = "longer input"
LONGEST = 1024
CUTS = 24


def run(trial: Trial) -> Outcome:
    subject = trial.subject
    needed = 2 * max(sizes_of(trial.contract.mask), default=1) + 3
    refused = ""
    # An odd length: tiles that do not come out even are where kernels slip.
    for length in sorted({max(4 * subject.time + 1, needed), max(2 * subject.time + 1, needed), needed}, reverse=True):
        if not subject.time < length <= LONGEST:
            continue
        contract = trial.contract_at(length)
        if contract is None:
            return Outcome(Check(NAME, "skipped", f"{trial.contract.mask!r} says nothing of more positions"))
        try:
            repeated = subject.x[:, torch.arange(length, device=subject.x.device) % subject.time]
            new = (torch.arange(length) >= subject.time).expand(subject.batch, length)
            larger = subject.at(subject.drawer.change(repeated, new, trial.generator))
            finite = bool(larger.run().isfinite().all())
        except Exception as error:
            refused = refused or f"length {length}: {brief(error)}"
            continue
        if not finite:
            refused = refused or f"length {length}: the outputs are not finite"
            continue
        cuts = contract.cuts()
        cuts = cuts[:: max(1, len(cuts) // CUTS)]
        rows = contract.forbidden[0][cuts]
        rows = rows[rows.any(-1)]
        found = Search()
        if len(rows):
            found = search(trial, rows, item=0, draws=1, check=NAME, prober=trial.prober_for(larger))
        return outcome(NAME, found, f"at {length} positions", {"length": length})
    return Outcome(
        Check(NAME, "skipped", f"no longer input runs: {refused}" if refused else "the input is long already")
    )
