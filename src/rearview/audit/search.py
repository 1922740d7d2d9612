"""The search for a leak: sources are changed, what may hear none of them is watched, and what moves is judged.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.search import search
>>> from rearview.audit.trial import Trial
>>> trial = Trial.of(lambda x: x + x.roll(-1, 1), torch.randn(1, 8), causal())
>>> found = search(trial, trial.contract.forbidden[0][:7], item=0, draws=1, check="suffix swap")
>>> found.leak.sources[0] - found.leak.query
1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.audit.leak import Leak, worst
from rearview.audit.probe import Moved, Prober
from rearview.audit.subject import Subject

if TYPE_CHECKING:
    from rearview.audit.trial import Trial


@dataclass(frozen=True, eq=False)
class Search:
    """What was tried and what was seen."""

    trials: int = 0
    """Pairs of runs: a set of sources with one draw."""
    unusable: int = 0
    """Trials in which an output ceased to be finite, which say nothing."""
    alive: bool = False
    """Did any output move at all?"""
    largest: float = 0.0
    """The largest change of what may move."""
    noise: float = 0.0
    """The largest change of what may not, judged to be rounding."""
    unclear: str = ""
    """A change that is neither surely rounding nor surely a leak."""
    leak: Leak | None = None
    amounts: Tensor | None = None
    """float64 [rows, time]: the largest change over the draws."""

    def joined(self, other: Search) -> Search:
        return Search(
            trials=self.trials + other.trials,
            unusable=self.unusable + other.unusable,
            alive=self.alive or other.alive,
            largest=max(self.largest, other.largest),
            noise=max(self.noise, other.noise),
            unclear=self.unclear or other.unclear,
            leak=self.leak if self.leak is not None else other.leak,
            amounts=_larger(self.amounts, other.amounts),
        )

    @property
    def numbers(self) -> dict[str, float | int | str | bool]:
        found: dict[str, float | int | str | bool] = {"trials": self.trials, "largest allowed": self.largest}
        if self.unusable:
            found["overflowed"] = self.unusable
        if self.noise:
            found["noise floor"] = self.noise
        if self.leak is not None:
            found["largest forbidden"] = self.leak.amount
        return found


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b) if a.shape == b.shape else a


def search(
    trial: Trial,
    changed: Tensor,
    *,
    item: int,
    draws: int,
    check: str,
    prober: Prober | None = None,
    kinds: tuple[float, ...] | None = None,
    stop: bool = True,
) -> Search:
    """Change each row of `changed`, bool [rows, time], in one batch item; `draws` times for each kind of draw.

    With `stop` the first leak ends it.
    """
    prober = prober or trial.prober
    real = prober.subject.real[item] if prober.subject.time == trial.subject.time else torch.tensor(True)
    contract = trial.contract_for(prober.subject)
    watched = contract.watched(item, changed) & real
    found = Search()
    for loudness in kinds or prober.subject.drawer.kinds:
        for _ in range(draws):
            moved = prober.change(changed, trial.generator, loudness=loudness, item=item)
            part = judged(trial, prober, moved, watched, item=item, check=check)
            # A loud draw says whether something is heard; how much is asked at ordinary size.
            found = found.joined(part if loudness == 1.0 else replace(part, amounts=None))
            if stop and found.leak is not None:
                return found
    return found


def judged(trial: Trial, prober: Prober, moved: Moved, watched: Tensor, *, item: int, check: str) -> Search:
    """What one experiment shows, by the worst of what moved and may not."""
    usable = moved.usable(watched)
    hits = moved.moved & watched & usable.unsqueeze(-1)
    allowed = moved.moved & ~watched
    # An infinite amount is not a size; it only tells that there was no number.
    finite = moved.amounts.masked_fill(moved.amounts.isinf(), 0.0)
    found = Search(
        trials=len(hits),
        unusable=int((~usable).sum()),
        alive=bool(allowed.any()),
        largest=float(finite.masked_fill(~allowed, 0.0).max()),
        amounts=moved.amounts,
    )
    if not bool(hits.any()):
        return found
    row, query = worst(moved.amounts, hits)
    amount = float(moved.amounts[row, query])
    if prober.alone:
        whole, items = prober.subject.x.clone(), None
        whole[item] = moved.other[row]
        clean, other = prober.subject.x, whole
        watch = torch.zeros(clean.shape[:2], dtype=torch.bool)
        watch[item] = watched[row]
    else:
        clean, other, items = moved.clean, moved.other, moved.items
        watch = watched
    judgement = trial.judge_for(prober.subject)(
        clean, other, watched=watch, amount=amount, scale=moved.scale, items=items
    )
    if judgement.is_noise:
        return replace(found, noise=amount)
    if not judgement.is_leak:
        return replace(found, unclear=judgement.why)
    whole = prober.subject.x.clone()
    whole[item] = moved.other[row]
    leak = Leak(
        check=check,
        subject=prober.subject,
        clean=prober.subject.x,
        other=whole,
        watched=watched[row],
        query=query,
        sources=tuple(moved.changed[row].nonzero().flatten().tolist()),
        item=item,
        amount=amount,
    )
    if not prober.alone and leak.shows() == 0.0:
        # The other rows of the experiment were heard: items of a batch are not alone in this model.
        trial.coupled = True
        among = _among_items(prober.subject, moved, row, query, check)
        alone = Prober(prober.subject, alone=True)
        again = search(trial, moved.changed[row : row + 1], item=item, draws=2, check=check, prober=alone)
        return replace(found, leak=again.leak or among, amounts=None if again.leak is None else again.amounts)
    return replace(found, leak=leak)


def _among_items(subject: Subject, moved: Moved, row: int, query: int, check: str) -> Leak:
    """The leak of an experiment as one between batch items: all rows but this one are changed."""
    other = moved.other.clone()
    other[row] = moved.clean[row]
    watched = torch.arange(len(other)) == row
    rows = subject.of_items(moved.items)
    leak = Leak(check, rows, moved.clean, other, watched, query, (int(row == 0),), row, 0.0, kind="batch")
    return replace(leak, amount=leak.shows())
