"""Batch isolation: change the other items of the batch; an item must not move by one bit.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import batch_isolation
>>> from rearview.auditing.context import AuditContext
>>> batch_isolation.run(AuditContext.of(lambda x: x - x.mean(0), torch.randn(2, 4), causal())).check.status
'failed'
"""

from __future__ import annotations

import torch

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak, worst
from rearview.auditing.evidence.probe import difference, scale_of
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check

NAME = "batch isolation"
# Items that compete hear each other only occasionally, so several draws are tried.
DRAWS = {False: 2, True: 12}


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    if subject.batch == 1:
        doubled = _doubled(context)
        if isinstance(doubled, str):
            return Outcome(
                Check(NAME, "skipped", f"the batch has one item, and the model does not run with two: {doubled}")
            )
        subject = doubled
    x = subject.x
    trials, noise, chance = 0, 0.0, 0.0
    before = subject.run(x)
    for draw in subject.sampler.draws * DRAWS[context.full]:
        for half in _halves(len(x)):
            where = (~half).unsqueeze(-1).expand(x.shape[:2])
            other = subject.sampler.change(x, where, context.generator, draw)
            after = subject.run(other)
            trials += 1
            amounts, moved = difference(before, after)
            real = subject.real & half.unsqueeze(-1)
            if not bool(after.isfinite().all()) or not bool((moved & real).any()):
                continue
            item, query = worst(amounts, moved & real)
            amount = float(amounts[item, query])
            scale = scale_of(before)
            judgement = context.judge_for(subject)(x, other, watched=real, amount=amount, scale=scale)
            if judgement.is_noise:
                noise = max(noise, amount)
                continue
            numbers = {"trials": trials, "largest forbidden": amount}
            if not judgement.is_leak:
                return Outcome(Check(NAME, "inconclusive", judgement.why, numbers))
            others = tuple((~half).nonzero().flatten().tolist())
            leak = Leak(NAME, subject, x, other, half, query, others, item, amount, kind="batch")
            if context.random and leak.without_chance() is None:
                chance = max(chance, amount)
                continue
            context.coupled = True
            why = f"item {item} moved by {amount:.3g} at position {query} when item {others[0]} of the batch changed"
            return Outcome(Check(NAME, "failed", why, numbers), leak)
    rounding = f"; differences up to {noise:.2g} are rounding" if noise else ", bit for bit"
    numbers = {"trials": trials, "batch": len(x)} | ({"noise floor": noise} if noise else {})
    if chance:
        rounding = "; random draws whose number depends on the data were fixed"
        numbers["by chance"] = chance
    return Outcome(Check(NAME, "passed", f"no item moved when the others changed{rounding}", numbers))


def _halves(batch: int) -> list[torch.Tensor]:
    """bool [batch]: the watched items. The first half, then the rest, so that all items are watched once."""
    first = torch.arange(batch) < (batch + 1) // 2
    return [first, ~first]


def _doubled(context: AuditContext) -> Subject | str:
    """The subject with a second batch item, or why it does not run."""
    subject = context.subject
    everywhere = torch.ones(1, subject.time, dtype=torch.bool)
    second = subject.sampler.change(subject.x, everywhere, context.generator)
    try:
        pair = subject.at(torch.cat([subject.x, second]))
        output = pair.run()
    except Exception as error:
        # The model may raise anything on a batch of another size.
        return brief(error)
    return pair if output.shape[:2] == (2, context.baseline.shape[1]) else "its output does not have two items"
