"""Liveness: the past must matter. A model that hears nobody passes every test of whom it must not hear.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import liveness, matrix
>>> from rearview.audit.trial import Trial
>>> trial = Trial.of(lambda x: x.relu(), torch.randn(1, 8), causal())
>>> _ = matrix.run(trial)
>>> liveness.run(trial).check.why
'no position hears any other that it may hear; what it must not hear could not be told from that'
"""

from __future__ import annotations

import torch

from rearview.audit.report import Check, Hears
from rearview.audit.trial import Outcome, Trial

NAME = "liveness"


def run(trial: Trial) -> Outcome:
    if trial.hears is None:
        return Outcome(Check(NAME, "inconclusive", "who heard whom is not known"))
    return Outcome(of(trial.hears))


def of(hears: Hears) -> Check:
    """Is the nearest position that may be heard, heard? And the farthest?"""
    time, sources = len(hears.amounts), torch.tensor(hears.sources)
    distance = (torch.arange(time).unsqueeze(-1) - sources).abs()
    others = ~hears.forbidden & (distance > 0)
    if not bool(others.any()):
        if bool((hears.heard & ~hears.forbidden).any()):
            return Check(NAME, "passed", "each position hears itself, and may hear nobody else", {"near": True})
        return Check(NAME, "inconclusive", "no position hears even itself", {"near": False})
    heard = hears.heard & others
    if not bool(heard.any()):
        why = "no position hears any other that it may hear; what it must not hear could not be told from that"
        return Check(NAME, "inconclusive", why, {"near": False})
    farthest, reach = int(distance[others].max()), int(distance[heard].max())
    share = float(heard.sum() / others.sum())
    numbers = {
        "near": True,
        "reach": reach,
        "farthest allowed": farthest,
        "share of allowed pairs heard": round(share, 3),
    }
    if reach < farthest:
        why = f"the past matters, up to {reach} positions away; nothing is heard from as far as {farthest}"
        return Check(NAME, "inconclusive", why, numbers)
    return Check(NAME, "passed", f"the past matters, from the nearest position to the farthest, {reach} away", numbers)
