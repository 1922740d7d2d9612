"""Directed search: where the structure allows a leak that no swap has shown, look for an input that shows it.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import directed_search
>>> from rearview.auditing.context import AuditContext
>>> def gated(x):
...     return x.cumsum(1) * torch.where(x.mean() > 100, 1.0, 0.5)
>>> directed_search.run(AuditContext.of(gated, torch.randn(1, 8), causal())).check.status
'failed'

Swaps change positions at random. What depends on a comparison with a mean, on a rounding or on one rare token seldom
shows that way. Here the positions that must not be heard are changed on purpose: along the gradient of each number that
decides something (for tokens: to those whose embeddings go furthest in that direction), to constants of either sign and
several sizes, to the numbers that tokens are compared with, and to every token of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rearview.auditing.checks.suffix_swap import outcome
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.decisions import Decisions, TurningPoint
from rearview.auditing.evidence.probe import Prober
from rearview.auditing.evidence.search import Search, judged
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check

NAME = "directed search"
# How far beyond the turning point a step goes; the first finds narrow intervals. Then the changes that are tried for a
# number whose turning point is not known.
STEPS = (1.001, 1.05, 2.0, 10.0)
TARGETS = (-1e3, -30.0, -1.0, 1.0, 30.0, 1e3)
SIZES = (1.0, 100.0, 1e4)
# The elements of a margin that are tried, those nearest to turning, and how often a margin is moved in all.
MOST_ELEMENTS, MOST_TURNED = 3, 48
MOST_PARAMETERS = 1 << 26
# More inputs than this run as one batch.
MOST_ALONE = 64
# The work that trying every token may take: positions times parameters.
MOST_WORK = 1 << 35


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    if context.contract.forbids_nothing:
        return Outcome(Check(NAME, "skipped", f"{context.contract.mask!r} forbids nothing at this length"))
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(NAME, "skipped", f"{subject.parameters:,} parameters are too many for it"))
    # One at a time: a branch is taken for the whole batch, and the other rows would decide it too.
    alone, batched = Prober(subject, alone=True), context.prober
    found, tried = Search(), 0
    for changed, other in _inputs(context):
        prober = alone if len(other) <= MOST_ALONE else batched
        found = found.merged(_compared(context, changed, other, prober))
        tried += len(other)
        if found.leak is not None:
            break
    if found.leak is None and (found.unclear or found.unusable == found.trials):
        # Extreme inputs overflow, or round so much that nothing can be said. The other checks have used ordinary ones.
        why = found.unclear or "with the inputs that were made for it, an output became NaN or infinite"
        return Outcome(Check(NAME, "skipped", why, found.numbers))
    return outcome(NAME, replace(found, alive=True), f"with {tried} inputs made to turn a decision")


def _compared(context: AuditContext, changed: Tensor, other: Tensor, prober: Prober) -> Search:
    """Judge inputs [rows, time, ...] in which `changed`, bool [time], was changed on purpose."""
    item = context.items[0]
    items = torch.full((len(other),), item)
    clean = context.subject.x[items.to(context.subject.x.device)]
    rows = changed.expand(len(other), -1)
    watched = context.contract.watched(item, rows) & context.subject.real[item]
    moved = prober.compare(clean, other, rows, items, given=True)
    return judged(context, prober, moved, watched, item=item, check=NAME)


def _inputs(context: AuditContext) -> Iterator[tuple[Tensor, Tensor]]:
    """What may be changed, bool [time], and inputs [rows, time, ...] in which nothing else is."""
    subject, item = context.subject, context.items[0]
    row = subject.x[item]
    forbidden = context.contract.forbidden[item]
    cuts = [cut for cut in context.contract.cuts() if bool(forbidden[cut].any())]
    chosen = [forbidden[cut] for cut in dict.fromkeys((cuts[0], cuts[len(cuts) // 2], cuts[-1]))]
    seen = _decisions(subject)
    for changed in chosen:
        if subject.sampler.tokens is None:
            yield changed, _constant(row, changed)
        else:
            yield changed, _with_tokens(row, changed, _special(subject, seen))
    if seen is not None:
        yield from _turned(subject, item, chosen, seen)
    tokens = subject.sampler.tokens
    work = 0 if tokens is None else len(tokens) * max(1, subject.parameters)
    if tokens is not None and 0 < work <= MOST_WORK:
        for part in tokens.split(512 * int(chosen[0].sum())):
            yield chosen[0], _sweep(row, chosen[0], part)


def _decisions(subject: Subject) -> Decisions | None:
    """The decisions in a run with gradients; None where it does not run so."""
    x = subject.x.detach().clone()
    if subject.sampler.tokens is None:
        x.requires_grad_()
    seen = Decisions(x)
    try:
        replace(subject, gradients=True, around=seen).run(x)
    except Exception:
        # The model may raise anything when it runs with gradients. Then only what needs none is tried.
        return None
    return seen


def _turned(subject: Subject, item: int, chosen: Sequence[Tensor], seen: Decisions) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs in which a number that decides something is moved to where it decides otherwise."""
    is_float = subject.sampler.tokens is None
    source = seen.x if is_float else seen.looked_up[0][0] if seen.looked_up else None
    used = 0
    for decision, gradient, margin in _gradients(seen.found, source):
        by_position = gradient.reshape(*subject.x.shape[:2], -1)[item]
        wanted = [*TARGETS] if decision.reads else [-step * margin for step in STEPS] + [-1e-3, 1e-3]
        for changed in chosen:
            direction = by_position * changed.to(gradient.device).unsqueeze(-1)
            if not bool(direction.any()):
                continue
            used += 1
            if is_float:
                rows = [_moved(subject.x[item], direction, amount) for amount in wanted]
            else:
                signs = sorted({1.0 if amount > 0 else -1.0 for amount in wanted})
                rows = [_nearest(subject, item, changed, sign * direction, seen.looked_up[0][1]) for sign in signs]
            yield changed, torch.stack(rows)
        if used >= MOST_TURNED:
            return


def _gradients(found: Sequence[TurningPoint], source: Tensor | None) -> Iterator[tuple[TurningPoint, Tensor, float]]:
    """The gradient of each margin with respect to the input, where it is nearest to turning; and the margin."""
    if source is None:
        return
    for decision in found:
        flat = decision.margin.flatten()
        for element in flat.detach().abs().nan_to_num(torch.inf).argsort()[:MOST_ELEMENTS].tolist():
            (gradient,) = torch.autograd.grad(flat[element], source, retain_graph=True, allow_unused=True)
            if gradient is not None and bool(gradient.isfinite().all()) and bool(gradient.any()):
                yield decision, gradient, float(flat[element].detach())


def _moved(x: Tensor, direction: Tensor, amount: float) -> Tensor:
    """The input moved along a gradient, so that the number changes by this amount where it is linear."""
    step = amount * direction / direction.square().sum()
    return (x.double() + step.double().view(x.shape)).to(x.dtype)


def _nearest(subject: Subject, item: int, changed: Tensor, direction: Tensor, table: Tensor) -> Tensor:
    """Each changed position with the token whose embedding goes furthest in a direction."""
    tokens = subject.sampler.tokens
    assert tokens is not None
    allowed = tokens.to(table.device).long()
    scores = direction.to(table.dtype) @ table[allowed].reshape(len(allowed), -1).T
    return torch.where(changed.to(table.device), tokens.to(table.device)[scores.argmax(-1)], subject.x[item])


def _constant(x: Tensor, changed: Tensor) -> Tensor:
    """Every changed position the same, in either sign and several sizes."""
    where = changed.to(x.device).view(-1, *(1,) * (x.ndim - 1))
    return torch.stack([torch.where(where, torch.full_like(x, s * size), x) for size in SIZES for s in (1, -1)])


def _special(subject: Subject, seen: Decisions | None) -> list[int]:
    """The tokens around those that the model compares with, the first and the last."""
    tokens = subject.sampler.tokens
    assert tokens is not None
    numbers = set() if seen is None else {n + step for n in seen.numbers for step in (-1, 0, 1)}
    known = set(tokens.tolist())
    return sorted({int(tokens[0]), int(tokens[-1]), *(n for n in numbers if n in known)})[:512]


def _with_tokens(x: Tensor, changed: Tensor, tokens: list[int]) -> Tensor:
    """Every changed position the same token; and the last of them only."""
    last = changed.nonzero().flatten()[-1]
    alone = torch.zeros_like(changed)
    alone[last] = True
    return torch.stack([x.masked_fill(where.to(x.device), token) for token in tokens for where in (changed, alone)])


def _sweep(x: Tensor, changed: Tensor, tokens: Tensor) -> Tensor:
    """Rows whose changed positions hold all of the tokens, each once."""
    count = int(changed.sum())
    padded = torch.cat([tokens, tokens[:1].expand(-len(tokens) % count)]).to(x.device)
    rows = x.expand(len(padded) // count, -1).clone()
    rows[:, changed.to(x.device)] = padded.view(-1, count)
    return rows
