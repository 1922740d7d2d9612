"""Other lengths: outputs must not change when positions that they may not hear are cut off or appended.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import length
>>> from rearview.auditing.context import AuditContext
>>> length.run(AuditContext.of(lambda x: x.cumsum(1) / x.shape[1], torch.randn(1, 8), causal())).check.status
'failed'

>>> def model(x):    # from 33 positions on, all hear the last one
...     return x if x.shape[1] <= 32 else x + x[:, -1:]
>>> length.run_longer(AuditContext.of(model, torch.randn(1, 12), causal(), full=True)).check.status
'failed'

Truncation compares the given input with shorter and longer ones. Another length is another shape, at which kernels add
in another order, so float64 tells rounding from a leak. The longer input repeats the suffix swap where windows and
chunks of the model have room to go wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.auditing.checks.suffix_swap import outcome
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.contract import sizes_of
from rearview.auditing.evidence.equivalence import DRAWS, TIES, EarliestOfEqualScores
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.probe import difference, scale_of
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.evidence.search import Search, search
from rearview.auditing.reporting.report import Check
from rearview.drawing.cells import counted

NAME = "truncation"
NAME_LONGER = "longer input"
LONGEST = 1024
CUTS = 24
# Rounding between two shapes is at most about this fraction of an ordinary output; float64 decides above it.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    if context.random:
        return Outcome(Check(NAME, "skipped", DRAWS))
    lengths = _lengths(context)
    tried, refused, largest, noise = 0, "", 0.0, 0.0
    scale = scale_of(context.baseline)
    for length in lengths:
        watched = _watched(context, length)
        if not bool(watched.any()):
            continue
        try:
            other = _of_length(context, length)
            after = subject.run(other)
        except Exception as error:
            # The model may raise anything at a length that it was not written for.
            refused = refused or f"length {length}: {brief(error)}"
            continue
        shared = min(length, subject.time)
        if after.shape[1] < shared or after.shape[0] != subject.batch:
            refused = refused or f"length {length}: the output has shape {list(after.shape)}"
            continue
        tried += 1
        amounts, _ = difference(context.baseline[:, :shared], after[:, :shared])
        amounts = amounts.masked_fill(~watched[:, :shared], 0.0)
        amount = float(amounts.max())
        largest = max(largest, amount)
        if amount <= ROUNDING.get(context.baseline.dtype, 1e-2) * scale:
            noise = max(noise, amount)
            continue
        judgement = context.judge_for(subject)(subject.x, other, watched=watched, amount=amount, scale=scale)
        numbers = {"lengths": tried, "largest": amount}
        if judgement.is_noise:
            noise = max(noise, amount)
        elif not judgement.is_leak:
            return Outcome(Check(NAME, "inconclusive", judgement.why, numbers))
        elif _only_ties(context, other, watched, scale):
            context.conditions.append(f"{TIES}: the outputs differ by up to {amount:.3g} at {length} positions")
        else:
            item, query = divmod(int(amounts.argmax()), amounts.shape[1])
            source = tuple(range(shared, max(length, subject.time)))
            leak = Leak(NAME, subject, subject.x, other, watched[item], query, source, item, amount, kind="length")
            lengths = f"{length} positions instead of {subject.time}"
            why = f"position {query} moved by {amount:.3g} when the input had {lengths}"
            return Outcome(Check(NAME, "failed", why, numbers), leak)
    if not tried:
        why = (
            f"the model runs at no other length: {refused}"
            if refused
            else "at every other length tried, each output may hear what differs"
        )
        return Outcome(Check(NAME, "skipped", why))
    why = f"the outputs are the same at {counted(tried, 'other length', 'other lengths')}"
    why += f"; differences up to {noise:.2g} are rounding" if noise else ", bit for bit"
    return Outcome(Check(NAME, "passed", why, {"lengths": tried, "largest": largest}))


def run_longer(context: AuditContext) -> Outcome:
    """Repeat the suffix swap at a greater length."""
    subject = context.subject
    needed = 2 * max(sizes_of(context.contract.mask), default=1) + 3
    refused = ""
    # Odd lengths, since kernels go wrong where a tile is not full.
    for length in sorted({max(4 * subject.time + 1, needed), max(2 * subject.time + 1, needed), needed}, reverse=True):
        if not subject.time < length <= LONGEST:
            continue
        contract = context.contract_at(length)
        if contract is None:
            return Outcome(
                Check(NAME_LONGER, "skipped", f"{context.contract.mask!r} is not defined for more positions")
            )
        try:
            larger = subject.at(_of_length(context, length))
            finite = bool(larger.run().isfinite().all())
        except Exception as error:
            # The model may raise anything at a length that it was not written for.
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
            found = search(context, rows, item=0, draws=1, check=NAME_LONGER, prober=context.prober_for(larger))
        return outcome(NAME_LONGER, found, f"at {length} positions", {"length": length})
    return Outcome(
        Check(
            NAME_LONGER,
            "skipped",
            f"the model runs at no greater length: {refused}" if refused else "the input is long already",
        )
    )


def _only_ties(context: AuditContext, other: Tensor, watched: Tensor, scale: float) -> bool:
    """Whether the difference is gone when the earliest of equal scores is taken."""
    with EarliestOfEqualScores():
        before, after = context.subject.run(context.subject.x), context.subject.run(other)
    shared = min(before.shape[1], after.shape[1])
    amounts, _ = difference(before[:, :shared], after[:, :shared])
    amount = float(amounts.masked_fill(~watched[:, :shared], 0.0).max())
    return amount <= ROUNDING.get(before.dtype, 1e-2) * scale


def _lengths(context: AuditContext) -> list[int]:
    time = context.subject.time
    shorter = {time - 1, time // 2, 3}
    if context.full:
        shorter |= set(context.contract.cuts()[:24])
        longer = {time + 1, time + 2, 2 * time}
    else:
        longer = set()
    return sorted((n for n in shorter | longer if n >= 1 and n != time), reverse=True)


def _watched(context: AuditContext, length: int) -> Tensor:
    """bool [batch, time]: real positions that may hear nothing of what differs between the two lengths."""
    time = context.subject.time
    if length > time:
        # The contract at the greater length says who may hear the new positions.
        longer = context.contract_at(length)
        if longer is None:
            return torch.zeros(context.subject.batch, time, dtype=torch.bool)
        return longer.forbidden[:, :time, time:].all(-1) & context.subject.real
    beyond = context.contract.forbidden[:, :, length:].all(-1)
    return beyond & context.subject.real & (torch.arange(time) < length)


def _of_length(context: AuditContext, length: int) -> Tensor:
    x = context.subject.x
    if length <= x.shape[1]:
        return x[:, :length]
    repeated = x[:, torch.arange(length, device=x.device) % x.shape[1]]
    new = (torch.arange(length) >= x.shape[1]).expand(len(x), length)
    return context.subject.sampler.change(repeated, new, context.generator)
