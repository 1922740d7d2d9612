"""Truncation and extension: what comes later must not matter by being there. Tests at one length are blind to this.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import length
>>> from rearview.audit.trial import Trial
>>> length.run(Trial.of(lambda x: x.cumsum(1) / x.shape[1], torch.randn(1, 8), causal())).check.status
'failed'

Another length is another shape, so that kernels add in another order: here rounding is told from a leak, in float64.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.audit.forms import DRAWS
from rearview.audit.leak import Leak
from rearview.audit.noise import brief
from rearview.audit.probe import difference, scale_of
from rearview.audit.report import Check
from rearview.audit.ties import TIES, first_of_equals
from rearview.audit.trial import Outcome, Trial
from rearview.masks.labels import counted

NAME = "truncation"
# Rounding between two shapes is at most about this share of an ordinary output; only beyond is float64 asked.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-5}


def run(trial: Trial) -> Outcome:
    subject = trial.subject
    if trial.random:
        return Outcome(Check(NAME, "skipped", DRAWS))
    lengths = _lengths(trial)
    tried, refused, largest, noise = 0, "", 0.0, 0.0
    scale = scale_of(trial.baseline)
    for length in lengths:
        watched = _watched(trial, length)
        if not bool(watched.any()):
            continue
        try:
            other = _of_length(trial, length)
            after = subject.run(other)
        except Exception as error:
            refused = refused or f"length {length}: {brief(error)}"
            continue
        shared = min(length, subject.time)
        if after.shape[1] < shared or after.shape[0] != subject.batch:
            refused = refused or f"length {length}: the output has the shape {list(after.shape)}"
            continue
        tried += 1
        amounts, _ = difference(trial.baseline[:, :shared], after[:, :shared])
        amounts = amounts.masked_fill(~watched[:, :shared], 0.0)
        amount = float(amounts.max())
        largest = max(largest, amount)
        if amount <= ROUNDING.get(trial.baseline.dtype, 1e-2) * scale:
            noise = max(noise, amount)
            continue
        judgement = trial.judge_for(subject)(subject.x, other, watched=watched, amount=amount, scale=scale)
        numbers = {"lengths": tried, "largest": amount}
        if judgement.is_noise:
            noise = max(noise, amount)
        elif not judgement.is_leak:
            return Outcome(Check(NAME, "inconclusive", judgement.why, numbers))
        elif _only_ties(trial, other, watched, scale):
            trial.conditions.append(f"{TIES}: the outputs differ by up to {amount:.3g} at {length} positions")
        else:
            item, query = divmod(int(amounts.argmax()), amounts.shape[1])
            source = tuple(range(shared, max(length, subject.time)))
            leak = Leak(NAME, subject, subject.x, other, watched[item], query, source, item, amount, kind="length")
            lengths = f"{length} positions instead of {subject.time}"
            why = f"position {query} moved by {amount:.3g} when the input had {lengths}"
            return Outcome(Check(NAME, "failed", why, numbers), leak)
    if not tried:
        why = f"the model runs at no other length: {refused}" if refused else "the contract ties no row to a length"
        return Outcome(Check(NAME, "skipped", why))
    why = f"the same outputs at {counted(tried, 'other length', 'other lengths')}"
    why += f"; differences up to {noise:.2g} are rounding" if noise else ", bit for bit"
    return Outcome(Check(NAME, "passed", why, {"lengths": tried, "largest": largest}))


def _only_ties(trial: Trial, other: Tensor, watched: Tensor, scale: float) -> bool:
    """Is the difference gone when the earliest of equal scores is taken?"""
    with first_of_equals():
        before, after = trial.subject.run(trial.subject.x), trial.subject.run(other)
    shared = min(before.shape[1], after.shape[1])
    amounts, _ = difference(before[:, :shared], after[:, :shared])
    amount = float(amounts.masked_fill(~watched[:, :shared], 0.0).max())
    return amount <= ROUNDING.get(before.dtype, 1e-2) * scale


def _lengths(trial: Trial) -> list[int]:
    time = trial.subject.time
    shorter = {time - 1, time // 2, 3}
    if trial.full:
        shorter |= set(trial.contract.cuts()[:24])
        longer = {time + 1, time + 2, 2 * time}
    else:
        longer = set()
    return sorted((n for n in shorter | longer if n >= 1 and n != time), reverse=True)


def _watched(trial: Trial, length: int) -> Tensor:
    """bool [batch, time]: real positions that may hear nothing from where the two lengths differ."""
    time = trial.subject.time
    if length > time:
        # The contract is asked about positions that are not there in the shorter input; causal rows cannot hear them.
        longer = trial.contract_at(length)
        if longer is None:
            return torch.zeros(trial.subject.batch, time, dtype=torch.bool)
        return longer.forbidden[:, :time, time:].all(-1) & trial.subject.real
    beyond = trial.contract.forbidden[:, :, length:].all(-1)
    return beyond & trial.subject.real & (torch.arange(time) < length)


def _of_length(trial: Trial, length: int) -> Tensor:
    x = trial.subject.x
    if length <= x.shape[1]:
        return x[:, :length]
    repeated = x[:, torch.arange(length, device=x.device) % x.shape[1]]
    new = (torch.arange(length) >= x.shape[1]).expand(len(x), length)
    return trial.subject.drawer.change(repeated, new, trial.generator)
