"""The proof and the contract: is everything that the program can hear allowed?

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.proving import proven
>>> from rearview.audit.trial import Trial
>>> proven(Trial.of(lambda x: x.cumsum(1), torch.randn(1, 8), causal())).status
'proven'
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from rearview.audit.noise import brief
from rearview.audit.report import ProofSummary
from rearview.audit.subject import Subject
from rearview.audit.trial import Trial
from rearview.masks.labels import counted

# Sets grow with the square of batch x time.
MOST_POSITIONS = {False: 256, True: 1024}
MOST_NAMED = 8


def proven(trial: Trial) -> ProofSummary:
    """Run the proof on a few items of the batch, and hold what it finds against the contract."""
    from rearview.audit.proof import ProofFailed, prove

    started = time.perf_counter()

    def summary(status, why: str, **more: tuple[str, ...]) -> ProofSummary:
        return ProofSummary(status, why, seconds=round(time.perf_counter() - started, 4), **more)

    subject, items = _few(trial)
    whole = subject.time
    most = MOST_POSITIONS[trial.full] // subject.batch
    if whole > most:
        try:
            subject = subject.at(subject.x[:, :most])
            subject.run()
        except Exception:
            return summary("failed", f"{whole:,} positions are too many for a proof, and it takes no fewer")
    length = subject.time
    visible = ~trial.contract.forbidden[items] | ~trial.subject.real[items].unsqueeze(-1)
    visible = visible[:, :length, :length]
    try:
        proof = prove(subject.run, subject.x)
        within = proof.within(visible)
    except ProofFailed as error:
        return summary("failed", brief(error))
    except Exception as error:
        return summary("failed", f"the proof stopped: {brief(error)}")
    conditions = tuple(str(condition) for condition in proof.conditions)
    unknown = tuple(str(op) for op in proof.unknown_ops)
    escapes = tuple(str(escape) for escape in proof.value_escapes)
    more = {"unknown_ops": unknown, "value_escapes": escapes, "assumptions": tuple(proof.assumptions)}
    if within and not escapes:
        if length < whole:
            why = f"proven for the first {length} positions, and {whole:,} are too many for a proof"
            return summary("not proven", why, conditions=conditions, **more)
        if conditions:
            return summary("conditional", "proven, if finite masks are never outweighed", conditions=conditions, **more)
        return summary("proven", "for every input and all weights, at these shapes", **more)
    violations = _violations(proof, visible)
    if escapes:
        why = f"a value left the tensors, at {escapes[0]}"
    elif unknown:
        why = f"an op has no rule: {unknown[0]}"
    else:
        why = f"it could hear: {violations[0]}" if violations else "it could hear more than the contract allows"
    return summary("not proven", why, conditions=conditions, violations=violations, **more)


def _few(trial: Trial) -> tuple[Subject, Tensor]:
    """Two items are enough to see whether items hear each other, unless their contracts differ."""
    subject = trial.subject
    if subject.batch == 1:
        pair = torch.zeros(2, dtype=torch.long)
        try:
            doubled = subject.at(subject.x[pair.to(subject.x.device)])
            doubled.run()
            return doubled, pair
        except Exception:
            return subject, pair[:1]
    if subject.batch == 2 or len(trial.items) > 1 or not trial.batched:
        return subject, torch.arange(subject.batch)
    items = torch.arange(2)
    return subject.of_items(items), items


def _violations(proof, visible: Tensor) -> tuple[str, ...]:
    found = []
    pairs = proof.violations(visible)
    for batch, query, other, source in pairs[:MOST_NAMED]:
        if batch != other:
            found.append(f"item {batch}, position {query} could hear item {other}, position {source}")
            continue
        origin = proof.origin(query, source, batch=batch)
        through = f", through {origin}" if origin is not None else ""
        found.append(f"position {query} could hear position {source}{through}")
    if len(pairs) > MOST_NAMED:
        found.append(f"and {counted(len(pairs) - MOST_NAMED, 'more pair', 'more pairs')}")
    return tuple(found)
