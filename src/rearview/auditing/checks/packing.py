"""Packed documents, in each calling convention: positions that restart, with and without a mask, and a block mask.

Where the contract has documents, they must not hear each other. Otherwise the check reports which conventions hold.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import packing
>>> from rearview.auditing.context import AuditContext
>>> packing.run(AuditContext.of(lambda x: x.cumsum(1), torch.randn(2, 8), causal(), full=True)).check.why
'the model takes neither position_ids nor attention_mask'
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak, worst
from rearview.auditing.evidence.probe import difference
from rearview.auditing.evidence.rounding import brief, output_dtype
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check

NAME = "packed documents"


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    names = subject.takes
    if not names & {"position_ids", "attention_mask"}:
        return Outcome(Check(NAME, "skipped", "the model takes neither position_ids nor attention_mask"))
    if subject.x.ndim != 2 or subject.time < 8:
        return Outcome(Check(NAME, "skipped", "packing is tried on inputs [batch, time] with at least 8 positions"))
    ids = _ids(context)
    asked = _documents(context)
    held: list[str] = []
    failed: list[tuple[str, Leak]] = []
    for name, extra in _conventions(subject, ids, names).items():
        try:
            leak = _heard(context, subject.with_inputs(subject.x, **extra), ids)
        except Exception as error:
            # The model may raise anything in a convention that it was not written for.
            if asked is not None:
                held.append(f"{name}: does not run ({brief(error)})")
            continue
        if leak is None:
            held.append(name)
        else:
            failed.append((name, leak))
    numbers = {"conventions that hold": ", ".join(held), "that do not": ", ".join(name for name, _ in failed)}
    if failed and asked is not None:
        name, leak = failed[0]
        why = f"with {name}, position {leak.query} moved by {leak.amount:.3g} when another document changed"
        return Outcome(Check(NAME, "failed", why, numbers), leak)
    if not held:
        return Outcome(Check(NAME, "skipped", "no known convention keeps documents apart in this model", numbers))
    lost = f"; not by {', '.join(name for name, _ in failed)}" if failed else ""
    return Outcome(Check(NAME, "passed", f"documents are kept apart by {', '.join(held)}{lost}", numbers))


def _ids(context: AuditContext) -> Tensor:
    """int64 [time]: documents of different lengths, one of them a single token."""
    asked = _documents(context)
    if asked is not None:
        return asked
    time = context.subject.time
    return (torch.arange(time) >= time // 2).long() + (torch.arange(time) >= time // 2 + 1).long()


def _documents(context: AuditContext) -> Tensor | None:
    """int64 [time]: the documents that the contract keeps apart; None where it has none."""
    forbidden = context.contract.forbidden[0]
    for part in context.contract.mask.walk():
        if part.document_ids is not None:
            ids = part.document_ids.cpu().view(-1, part.document_ids.shape[-1])[0, : context.subject.time]
            # In `causal() | documents(images)` the same family lets positions hear more, and keeps nothing apart.
            if bool(forbidden[ids.unsqueeze(-1) != ids].all()):
                return ids
    return None


def _conventions(subject: Subject, ids: Tensor, names: frozenset[str]) -> dict[str, dict[str, Any]]:
    batch, time = subject.x.shape[:2]
    device = subject.x.device
    start = torch.searchsorted(ids.contiguous(), ids.contiguous())
    positions = (torch.arange(time) - start).expand(batch, time).to(device)
    heard = (ids.unsqueeze(-1) == ids) & torch.ones(time, time, dtype=torch.bool).tril()
    block = heard.expand(batch, 1, time, time).to(device)
    additive = torch.zeros(block.shape, device=device, dtype=output_dtype(subject))
    additive = additive.masked_fill(~block, torch.finfo(additive.dtype).min)
    found: dict[str, dict[str, Any]] = {}
    if "position_ids" in names:
        found["positions that restart"] = {"position_ids": positions}
        if "attention_mask" in names:
            ones = torch.ones(batch, time, dtype=torch.long, device=device)
            found["positions that restart and a mask of ones"] = {"position_ids": positions, "attention_mask": ones}
    if "attention_mask" in names:
        found["a block mask"] = {"attention_mask": additive}
    return found


def _heard(context: AuditContext, subject: Subject, ids: Tensor) -> Leak | None:
    """Change the first document; a leak where an output of another one moves."""
    first = ids == ids[0]
    where = first.expand(subject.x.shape[:2])
    other = subject.sampler.change(subject.x, where, context.generator)
    before, after = subject.run(), subject.run(other)
    amounts, moved = difference(before, after)
    watched = (~first).expand(subject.x.shape[:2])
    if not bool((moved & watched).any()):
        return None
    item, query = worst(amounts, moved & watched)
    sources = tuple(first.nonzero().flatten().tolist())
    return Leak(NAME, subject, subject.x, other, ~first, query, sources, item, float(amounts[item, query]))
