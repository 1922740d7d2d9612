"""Batch isolation: change the other items of the batch; an item must not move by one bit.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import batch
>>> from rearview.audit.trial import Trial
>>> batch.run(Trial.of(lambda x: x - x.mean(0), torch.randn(2, 4), causal())).check.status
'failed'
"""

from __future__ import annotations

from dataclasses import replace

import torch

from rearview.audit.leak import Leak, worst
from rearview.audit.noise import brief
from rearview.audit.probe import difference, scale_of
from rearview.audit.report import Check
from rearview.audit.subject import Subject
from rearview.audit.trial import Outcome, Trial

NAME = "batch isolation"
# Items that compete hear each other only now and then.
DRAWS = {False: 2, True: 12}


def run(trial: Trial) -> Outcome:
    subject = trial.subject
    if subject.batch == 1:
        doubled = _doubled(trial)
        if isinstance(doubled, str):
            return Outcome(Check(NAME, "skipped", f"a batch of one, and it takes no other: {doubled}"))
        subject = doubled
    x = subject.x
    trials, noise = 0, 0.0
    before = subject.run(x)
    for loudness in subject.drawer.kinds * DRAWS[trial.full]:
        for half in _halves(len(x)):
            where = (~half).unsqueeze(-1).expand(x.shape[:2])
            other = subject.drawer.change(x, where, trial.generator, loudness)
            after = subject.run(other)
            trials += 1
            amounts, moved = difference(before, after)
            real = subject.real & half.unsqueeze(-1)
            if not bool(after.isfinite().all()) or not bool((moved & real).any()):
                continue
            item, query = worst(amounts, moved & real)
            amount = float(amounts[item, query])
            scale = scale_of(before)
            judgement = trial.judge_for(subject)(x, other, watched=real, amount=amount, scale=scale)
            if judgement.is_noise:
                noise = max(noise, amount)
                continue
            numbers = {"trials": trials, "largest forbidden": amount}
            if not judgement.is_leak:
                return Outcome(Check(NAME, "inconclusive", judgement.why, numbers))
            trial.coupled = True
            others = tuple((~half).nonzero().flatten().tolist())
            leak = Leak(NAME, subject, x, other, half, query, others, item, amount, kind="batch")
            why = f"item {item} moved by {amount:.3g} at position {query} when item {others[0]} of the batch changed"
            return Outcome(Check(NAME, "failed", why, numbers), leak)
    rounding = f"; differences up to {noise:.2g} are rounding" if noise else ", bit for bit"
    numbers = {"trials": trials, "batch": len(x)} | ({"noise floor": noise} if noise else {})
    return Outcome(Check(NAME, "passed", f"no item moved when the others changed{rounding}", numbers))


def _halves(batch: int) -> list[torch.Tensor]:
    """bool [batch]: what is watched. The first half, then the rest, so that either side of the batch is asked."""
    first = torch.arange(batch) < (batch + 1) // 2
    return [first, ~first]


def _doubled(trial: Trial) -> Subject | str:
    """The subject with a second item beside its only one."""
    subject = trial.subject
    everywhere = torch.ones(1, subject.time, dtype=torch.bool)
    second = subject.drawer.change(subject.x, everywhere, trial.generator)
    try:
        pair = subject.at(torch.cat([subject.x, second]))
        output = pair.run()
    except Exception as error:
        return brief(error)
    return replace(pair) if output.shape[:2] == (2, trial.baseline.shape[1]) else "its output is not two items"
