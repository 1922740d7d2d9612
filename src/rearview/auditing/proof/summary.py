"""The proof as a part of an audit: does the contract allow everything that the model can hear?

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.proof.summary import summarize_proof
>>> from rearview.auditing.context import AuditContext
>>> found = summarize_proof(AuditContext.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal()))
>>> found.status, found.shape, found.lengths
('proven', (1, 8), (3,))

The proof runs at the shape that was given and, where that is proven, at other lengths: one in a quick audit, every
length up to the given one in a full audit. It never claims a length at which it did not run.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import gcd

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext
from rearview.auditing.contract import in_words
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.state import drawn_outside_of_torch
from rearview.auditing.model.subject import Subject
from rearview.auditing.proof.prover import prove
from rearview.auditing.proof.result import Proof
from rearview.auditing.reporting.report import Hears, ProofStatus, ProofSummary
from rearview.drawing.cells import counted
from rearview.errors import RearviewError

# Scores have sets of batch x time x time x (batch + time) booleans.
MOST_BOOLEANS = {False: 1 << 25, True: 1 << 29}
# Up to this length a full audit proves every length.
EVERY_LENGTH = 64
MOST_NAMED = 8


def summarize_proof(context: AuditContext) -> ProofSummary:
    """Run the proof at the given shape, compare what can be heard with the contract, then run it at other lengths."""
    started = time.perf_counter()

    def timed(summary: ProofSummary) -> ProofSummary:
        return replace(summary, seconds=round(time.perf_counter() - started, 4))

    subject, items = _affordable(context)
    whole = context.subject.time
    if subject is None:
        return timed(_failed(f"{whole:,} positions are too many for a proof, and the model does not run with fewer"))
    tried: set[Hashable] = set()
    attempt = _attempt(context, subject, items, tried)
    if isinstance(attempt, str):
        return timed(_failed(attempt))
    summary = attempt.summary()
    contradictions = _contradictions(context.hears, attempt, items)
    if contradictions:
        why = f"an experiment contradicts the proof: {contradictions[0]}"
        return timed(replace(summary, status="not proven", why=why, contradictions=contradictions))
    if not summary.is_proven:
        return timed(summary)
    if subject.time < whole:
        why = f"proven for the first {subject.time} positions only: {whole:,} are too many for a proof"
        return timed(replace(summary, status="not proven", why=why))
    return timed(_at_other_lengths(context, subject, items, summary, tried))


@dataclass(frozen=True, eq=False)
class _Attempt:
    """The proof at one shape."""

    subject: Subject
    visible: Tensor
    """bool [batch, time, time]: what the contract allows."""
    proof: Proof

    @property
    def holds(self) -> bool:
        return self.proof.within(self.visible) and not self.proof.value_escapes

    @property
    def is_traceable(self) -> bool:
        """Whether every op was followed, so that a violation has an origin to name."""
        return not self.proof.value_escapes and not self.proof.unknown_ops

    def summary(self) -> ProofSummary:
        proof = self.proof
        summary = ProofSummary(
            "not proven",
            "",
            conditions=tuple(str(condition) for condition in proof.conditions),
            unknown_ops=tuple(str(op) for op in proof.unknown_ops),
            value_escapes=tuple(str(escape) for escape in proof.value_escapes),
            decided_ahead=self.decided_ahead(),
            assumptions=tuple(proof.assumptions),
            shape=tuple(self.subject.x.shape),
        )
        if self.holds:
            status: ProofStatus = "conditional" if proof.conditions else "proven"
            return replace(summary, status=status, why=_claim(summary))
        return replace(summary, violations=self.violations(), why=self.why_not())

    def why_not(self) -> str:
        if self.proof.unknown_ops:
            return f"the proof has no rule for an op: {self.proof.unknown_ops[0]}"
        if self.proof.value_escapes:
            return f"a value left the tensors, where the proof cannot follow it: {self.proof.value_escapes[0]}"
        return f"its structure allows a leak: {self.violations()[0]}"

    def decided_ahead(self) -> tuple[str, ...]:
        """Where a value that has heard more than some outputs may decides what runs."""
        found = []
        for escape in self.proof.value_escapes:
            heard = torch.zeros(self.visible.shape[-1], dtype=torch.bool)
            heard[list(escape.times)] = True
            outputs = (heard & ~self.visible).any(-1).any(0).nonzero().flatten().tolist()
            if outputs:
                found.append(
                    f"{escape.place}: the value that is read here has heard {in_words(escape.times)} and decides what "
                    f"runs, although the outputs at {in_words(outputs)} must not hear all of them"
                )
        return tuple(found)

    def violations(self) -> tuple[str, ...]:
        found = []
        pairs = self.proof.violations(self.visible)
        for batch, query, other, source in pairs[:MOST_NAMED]:
            if batch != other:
                found.append(f"item {batch}, position {query} could hear item {other}, position {source}")
                continue
            origin = self.proof.origin(query, source, batch=batch)
            through = f", through {origin}" if origin is not None else ""
            found.append(f"position {query} could hear position {source}{through}")
        if len(pairs) > MOST_NAMED:
            found.append(f"and {counted(len(pairs) - MOST_NAMED, 'more pair', 'more pairs')}")
        return tuple(found)


def _attempt(context: AuditContext, subject: Subject, items: Tensor, tried: set[Hashable]) -> _Attempt | str:
    """The proof at one shape, or why it failed. `tried`: see `prove`."""
    length = subject.time
    contract = context.contract if length == context.subject.time else context.contract_at(length)
    if contract is None:
        return "the contract is not defined at this length"
    visible = ~contract.forbidden[items] | ~context.subject.real[items][:, :length].unsqueeze(-1)
    # What the model keeps at its first call, such as a mask, must be computed where the proof sees it.
    subject = replace(subject, restores_values=True)
    try:
        # Most proofs succeed, and then the first op that heard a position need not be known.
        attempt = _Attempt(subject, visible, prove(subject.run, subject.x, origins=False, tried=tried))
        if not attempt.holds and attempt.is_traceable:
            attempt = replace(attempt, proof=prove(subject.run, subject.x, tried=tried))
    except RearviewError as error:
        return f"the proof stopped with {brief(error)}"
    if drawn_outside_of_torch(subject.seed):
        drawn = "draws from the generators of Python and numpy are those of this run"
        attempt = replace(attempt, proof=replace(attempt.proof, assumptions=(*attempt.proof.assumptions, drawn)))
    return attempt


def _failed(why: str) -> ProofSummary:
    return ProofSummary("failed", why)


def _claim(summary: ProofSummary) -> str:
    condition = ", provided that scores never outweigh finite masks" if summary.conditions else ""
    return f"proven for every input {summary.scope} and all weights{condition}"


def _affordable(context: AuditContext) -> tuple[Subject | None, Tensor]:
    """The subject as it was given; with fewer items, then with fewer positions, where the sets would be too large."""
    subject, most = context.subject, MOST_BOOLEANS[context.full]
    items = torch.arange(subject.batch)
    while len(items) > 2 and _booleans(len(items), subject.time) > most and len(context.items) == 1:
        items = items[: len(items) // 2]
    if len(items) < subject.batch:
        if context.batched:
            subject = subject.of_items(items)
        else:
            items = torch.arange(subject.batch)
    length = subject.time
    while _booleans(len(items), length) > most:
        length = length * 3 // 4
    if length == subject.time:
        return subject, items
    try:
        shorter = subject.at(subject.x[:, :length])
        shorter.run()
    except Exception:
        # The model may raise anything at another length.
        return None, items
    return shorter, items


def _booleans(batch: int, time: int) -> int:
    return batch * time * time * (batch + time)


def _contradictions(hears: Hears | None, attempt: _Attempt, items: Tensor) -> tuple[str, ...]:
    """Pairs that an experiment has shown to hear each other, although the proof rules it out."""
    proof, length = attempt.proof, attempt.subject.time
    if hears is None or hears.item not in items.tolist():
        return ()
    row = items.tolist().index(hears.item)
    columns = [n for n, source in enumerate(hears.sources) if source < length]
    possible = proof.hears[row, :, row].cpu()[:, [hears.sources[n] for n in columns]]
    heard = hears.heard[:length, columns]
    if heard.shape != possible.shape:
        return ()
    pairs = (heard & ~possible).nonzero().tolist()
    found = [
        f"position {query} moved when position {hears.sources[columns[n]]} changed, which the proof rules out"
        for query, n in pairs[:MOST_NAMED]
    ]
    if len(pairs) > MOST_NAMED:
        found.append(f"and {counted(len(pairs) - MOST_NAMED, 'more pair', 'more pairs')}")
    return tuple(found)


def _at_other_lengths(
    context: AuditContext, subject: Subject, items: Tensor, summary: ProofSummary, tried: set[Hashable]
) -> ProofSummary:
    """The same summary with the lengths that are proven as well, and why another is not."""
    proven: list[int] = []
    elsewhere = ""
    conditions = list(summary.conditions)
    for length in other_lengths(subject.time, full=context.full):
        # Two items show whether items hear each other.
        rows = items[[0, 0]] if subject.batch == 1 and context.batched else items
        attempt = _shorter(context, subject, rows, length, tried)
        if isinstance(attempt, _Attempt) and attempt.holds:
            proven.append(length)
            conditions += [text for text in attempt.summary().conditions if not summary.conditions]
        elif not elsewhere:
            elsewhere = f"with {counted(length, 'position', 'positions')} {_why_not(subject, attempt, length)}"
    found = replace(summary, lengths=tuple(sorted(proven)), elsewhere=elsewhere, conditions=tuple(conditions))
    return replace(found, status="conditional" if conditions else found.status, why=_claim(found))


def _why_not(subject: Subject, attempt: _Attempt | str, length: int) -> str:
    """What is not so at another length: that it runs there, or that it is proven."""
    if isinstance(attempt, _Attempt):
        return f"it is not proven: {attempt.why_not()}"
    try:
        subject.at(subject.x[:, :length]).run()
    except Exception as error:
        # The model may raise anything at another length.
        return f"it does not run: {brief(error)}"
    return f"it is not proven: {attempt}"


def _shorter(
    context: AuditContext, subject: Subject, items: Tensor, length: int, tried: set[Hashable]
) -> _Attempt | str:
    """The proof with fewer positions."""
    x = subject.x[:, :length]
    try:
        there = subject.at(x if len(items) == len(x) else x.expand(len(items), *x.shape[1:]))
    except RearviewError as error:
        return brief(error)
    return _attempt(context, there, items, tried)


def other_lengths(length: int, *, full: bool) -> list[int]:
    """Lengths without a common factor, so that no chunk or window divides all of them; in a full audit every length.

    >>> other_lengths(32, full=False), other_lengths(5, full=True)
    ([11], [1, 2, 3, 4])
    """
    if full and length <= EVERY_LENGTH:
        return list(range(1, length))
    found = [length]
    for wanted in [length * n // 8 for n in range(7, 0, -1)] if full else [length // 3]:
        coprime = [n for n in range(wanted, length) if n > 1 and all(gcd(n, other) == 1 for other in found)]
        found += coprime[:1]
    return found[1:]
