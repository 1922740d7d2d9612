"""The search for a leak: change sources, watch the outputs that may hear none of them, and judge what moves.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.evidence.search import search
>>> from rearview.auditing.context import AuditContext
>>> context = AuditContext.of(lambda x: x + x.roll(-1, 1), torch.randn(1, 8), causal())
>>> found = search(context, context.contract.forbidden[0][:7], item=0, draws=1, check="suffix swap")
>>> found.leak.sources[0] - found.leak.query
1
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.auditing.evidence.leak import Leak, worst
from rearview.auditing.evidence.probe import Moved, Prober
from rearview.auditing.model.draws import SEEDS
from rearview.auditing.model.sampling import Draw
from rearview.auditing.model.subject import Subject

if TYPE_CHECKING:
    from rearview.auditing.context import AuditContext


@dataclass(frozen=True, eq=False)
class Search:
    """The experiments so far and their results."""

    trials: int = 0
    """The number of pairs of runs: one set of sources with one draw each."""
    unusable: int = 0
    """The number of trials in which an output ceased to be finite; they say nothing."""
    alive: bool = False
    """Whether any output moved at all."""
    largest: float = 0.0
    """The largest change of an output that may change."""
    noise: float = 0.0
    """The largest change of an output that must not, judged to be rounding."""
    chance: float = 0.0
    """The largest change of an output that must not, due to random draws whose number depends on the data."""
    unclear: str = ""
    """Why a change could be attributed neither to rounding nor to a leak; empty where there is none."""
    leak: Leak | None = None
    amounts: Tensor | None = None
    """float64 [rows, time]: the largest change over the draws."""

    def merged(self, other: Search) -> Search:
        return Search(
            trials=self.trials + other.trials,
            unusable=self.unusable + other.unusable,
            alive=self.alive or other.alive,
            largest=max(self.largest, other.largest),
            noise=max(self.noise, other.noise),
            chance=max(self.chance, other.chance),
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
        if self.chance:
            found["by chance"] = self.chance
        if self.leak is not None:
            found["largest forbidden"] = self.leak.amount
        return found


def _larger(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return torch.maximum(a, b) if a.shape == b.shape else a


def search(
    context: AuditContext,
    changed: Tensor,
    *,
    item: int,
    draws: int,
    check: str,
    prober: Prober | None = None,
    kinds: tuple[Draw, ...] | None = None,
    stop: bool = True,
) -> Search:
    """Change the sources of each row of `changed`, bool [rows, time], in one batch item, and judge what moves.

    Each of the `kinds` of values is drawn `draws` times. With `stop` the first leak ends the search.
    """
    prober = prober or context.prober
    real = prober.subject.real[item] if prober.subject.time == context.subject.time else torch.tensor(True)
    contract = context.contract_for(prober.subject)
    watched = contract.watched(item, changed) & real
    found = Search()
    for draw in kinds or prober.subject.sampler.draws:
        for _ in range(draws):
            moved = prober.change(changed, context.generator, draw=draw, item=item)
            part = judged(context, prober, moved, watched, item=item, check=check)
            # Only ordinary draws measure how much is heard; the others find out whether anything is.
            found = found.merged(part if draw == "ordinary" else replace(part, amounts=None))
            if stop and found.leak is not None:
                return found
    if found.chance and found.leak is None:
        # A leak may hide among differences by chance, so everything is tried again with draws that do not shift.
        for seed in SEEDS:
            fixed = Prober(replace(prober.subject, fixed_draws=seed), alone=prober.alone)
            again = search(context, changed, item=item, draws=draws, check=check, prober=fixed, kinds=kinds, stop=stop)
            found = replace(found, leak=found.leak or again.leak, unclear=found.unclear or again.unclear)
    return found


def judged(context: AuditContext, prober: Prober, moved: Moved, watched: Tensor, *, item: int, check: str) -> Search:
    """Judge one experiment by the largest change among the outputs that must not move."""
    usable = moved.usable(watched)
    hits = moved.moved & watched & usable.unsqueeze(-1)
    allowed = moved.moved & ~watched
    # An infinite amount is no size; it only says that an output was NaN or infinite.
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
    judgement = context.judge_for(prober.subject)(
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
    is_random = prober.subject.training or context.random
    if is_random:
        remaining = leak.without_chance()
        if remaining is None:
            return replace(found, chance=amount, amounts=None)
        leak = remaining
    if not prober.alone and leak.shows() == 0.0:
        # It shows only in the batch, so the other rows of the experiment were heard: batch items hear each other.
        among = _among_items(prober.subject, moved, row, query, check)
        if is_random:
            remaining = among.without_chance()
            if remaining is None:
                return replace(found, chance=amount, amounts=None)
            among = remaining
        context.coupled = True
        alone = Prober(prober.subject, alone=True)
        again = search(context, moved.changed[row : row + 1], item=item, draws=2, check=check, prober=alone)
        return replace(found, leak=again.leak or among, amounts=None if again.leak is None else again.amounts)
    return replace(found, leak=leak)


def _among_items(subject: Subject, moved: Moved, row: int, query: int, check: str) -> Leak:
    """The leak as one between batch items: all rows of the experiment but this one are changed."""
    other = moved.other.clone()
    other[row] = moved.clean[row]
    watched = torch.arange(len(other)) == row
    rows = subject.of_items(moved.items)
    leak = Leak(check, rows, moved.clean, other, watched, query, (int(row == 0),), row, 0.0, kind="batch")
    return replace(leak, amount=leak.shows())
