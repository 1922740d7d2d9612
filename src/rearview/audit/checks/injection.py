"""Injected leak: a little of what must not be heard is added to the outputs; the suffix swap has to find it.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import injection
>>> from rearview.audit.trial import Trial
>>> injection.run(Trial.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal())).check.status
'passed'

The smallest share that is still found is the sensitivity of the audit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.audit.probe import difference
from rearview.audit.report import Check
from rearview.audit.trial import Outcome, Trial

NAME = "injected leak"
SHARES = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
CUTS = 3
FEATURES = 256


def run(trial: Trial) -> Outcome:
    if trial.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{trial.contract.mask!r} forbids nothing at this length"))
    subject, item = trial.subject, trial.items[0]
    forbidden = trial.contract.forbidden[item]
    rows = forbidden[forbidden.any(-1)]
    rows = rows[torch.linspace(0, len(rows) - 1, CUTS).round().long().unique()]
    watched = trial.contract.watched(item, rows) & subject.real[item]
    items = torch.full((len(rows),), item)
    clean = subject.x[items.to(subject.x.device)]
    other = subject.drawer.change(clean, rows, trial.generator)
    # A share of a wide output is as good as all of it.
    runs = [trial.prober.outputs(x, items)[..., :FEATURES].nan_to_num(0.0) for x in (clean, other)]
    leaked = [_forbidden_mean(run, forbidden) for run in runs]
    found = [share for share in SHARES if _found(runs, leaked, watched, share)]
    if not found:
        why = "a leak that was added to the outputs was not found, so that no other would have been"
        return Outcome(Check(NAME, "inconclusive", why, {"found": False}))
    why = f"found down to a share of {min(found):.0e} of the outputs"
    return Outcome(Check(NAME, "passed", why, {"found": True, "smallest share": min(found)}))


def _forbidden_mean(run: Tensor, forbidden: Tensor) -> Tensor:
    """For each position the mean of the outputs at all those that it must not hear."""
    weights = forbidden.to(run.device, run.dtype if run.is_floating_point() else torch.float32)
    return weights @ run.to(weights.dtype) / weights.sum(-1, keepdim=True).clamp(min=1)


def _found(runs: list[Tensor], leaked: list[Tensor], watched: Tensor, share: float) -> bool:
    before, after = (run.to(more.dtype) + share * more for run, more in zip(runs, leaked, strict=True))
    return bool((difference(before, after)[1] & watched).any())
