"""Self-tests: could the other checks have failed? A model that hears nothing would pass them all.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import matrix, self_tests
>>> from rearview.auditing.context import AuditContext
>>> context = AuditContext.of(lambda x: x.relu(), torch.randn(1, 8), causal())
>>> _ = matrix.run(context)
>>> self_tests.run_liveness(context).check.why
'no position hears any other, not even those that it may hear, so the other checks show nothing'
>>> self_tests.run_injection(AuditContext.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal())).check.status
'passed'

Liveness: positions must hear others that they may hear. Injected leak: a fraction of what must not be heard is added to
the outputs, and the suffix swap has to find it; the smallest fraction that is found is the sensitivity of the audit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.probe import difference
from rearview.auditing.reporting.report import Check, Hears

LIVENESS = "liveness"
INJECTION = "injected leak"
FRACTIONS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
CUTS = 3
FEATURES = 256


def run_liveness(context: AuditContext) -> Outcome:
    if context.hears is None:
        return Outcome(Check(LIVENESS, "inconclusive", "the check of who heard whom gave no answer"))
    return Outcome(liveness(context.hears))


def liveness(hears: Hears) -> Check:
    """Whether the nearest position that may be heard is heard, and whether the farthest is."""
    time, sources = len(hears.amounts), torch.tensor(hears.sources)
    distance = (torch.arange(time).unsqueeze(-1) - sources).abs()
    others = ~hears.forbidden & (distance > 0)
    if not bool(others.any()):
        if bool((hears.heard & ~hears.forbidden).any()):
            return Check(LIVENESS, "passed", "each position hears itself, and may hear no other", {"near": True})
        return Check(LIVENESS, "inconclusive", "no position hears even itself", {"near": False})
    heard = hears.heard & others
    if not bool(heard.any()):
        why = "no position hears any other, not even those that it may hear, so the other checks show nothing"
        return Check(LIVENESS, "inconclusive", why, {"near": False})
    farthest, reach = int(distance[others].max()), int(distance[heard].max())
    numbers = {
        "near": True,
        "reach": reach,
        "farthest allowed": farthest,
        "share of allowed pairs heard": round(float(heard.sum() / others.sum()), 3),
    }
    if reach < farthest:
        why = f"positions hear others at most {reach} away, although the contract allows {farthest}"
        return Check(LIVENESS, "inconclusive", why, numbers)
    why = f"positions hear others up to the farthest that the contract allows, {reach} away"
    return Check(LIVENESS, "passed", why, numbers)


def run_injection(context: AuditContext) -> Outcome:
    if context.contract.forbids_nothing:
        return Outcome(Check(INJECTION, "skipped", f"{context.contract.mask!r} forbids nothing at this length"))
    subject, item = context.subject, context.items[0]
    forbidden = context.contract.forbidden[item]
    rows = forbidden[forbidden.any(-1)]
    rows = rows[torch.linspace(0, len(rows) - 1, CUTS).round().long().unique()]
    watched = context.contract.watched(item, rows) & subject.real[item]
    items = torch.full((len(rows),), item)
    clean = subject.x[items.to(subject.x.device)]
    other = subject.sampler.change(clean, rows, context.generator)
    # Some features of a wide output are as good as all of them.
    runs = [context.prober.outputs(x, items)[..., :FEATURES].nan_to_num(0.0) for x in (clean, other)]
    leaked = [_forbidden_mean(run, forbidden) for run in runs]
    found = [fraction for fraction in FRACTIONS if _is_found(runs, leaked, watched, fraction)]
    if not found:
        why = "a leak that was added to the outputs was not found, so no other leak would have been"
        return Outcome(Check(INJECTION, "inconclusive", why, {"found": False}))
    why = f"an added leak is found down to a fraction of {min(found):.0e} of the outputs"
    return Outcome(Check(INJECTION, "passed", why, {"found": True, "smallest fraction": min(found)}))


def _forbidden_mean(run: Tensor, forbidden: Tensor) -> Tensor:
    """For each position, the mean of the outputs at all positions that it must not hear."""
    weights = forbidden.to(run.device, run.dtype if run.is_floating_point() else torch.float32)
    return weights @ run.to(weights.dtype) / weights.sum(-1, keepdim=True).clamp(min=1)


def _is_found(runs: list[Tensor], leaked: list[Tensor], watched: Tensor, fraction: float) -> bool:
    before, after = (run.to(more.dtype) + fraction * more for run, more in zip(runs, leaked, strict=True))
    return bool((difference(before, after)[1] & watched).any())
