"""Padding, on the left and on the right: neither its content nor its amount may matter.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import padding
>>> from rearview.auditing.context import AuditContext
>>> def model(x, attention_mask=None):
...     return x.cumsum(1)
>>> padding.run(AuditContext.of(model, torch.randn(2, 8), causal(), full=True)).check.why
'left padding: position ... moved by ... when the padding changed'
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.equivalence import DRAWS, compare_forms
from rearview.auditing.evidence.leak import Leak, worst
from rearview.auditing.evidence.probe import difference, scale_of
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.inputs import with_varied
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check
from rearview.drawing.cells import counted

NAME = "padding"
PADS = 3


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    names = subject.takes
    if "attention_mask" not in names and bool(subject.real.all()):
        return Outcome(Check(NAME, "skipped", "the model takes no attention_mask"))
    if subject.x.ndim != 2:
        return Outcome(Check(NAME, "skipped", "only inputs [batch, time] can be padded"))
    if context.random:
        return Outcome(Check(NAME, "skipped", DRAWS))
    if not bool(subject.real.all()):
        return _as_given(context)
    said: list[str] = []
    for side in ("left", "right"):
        try:
            padded = _padded(subject, side)
            leak, why = _content(context, padded, side)
        except Exception as error:
            # The model may raise anything on inputs with padding.
            return Outcome(Check(NAME, "skipped", f"the model does not run with {side} padding: {brief(error)}"))
        if leak is not None or why:
            status = "failed" if leak is not None else "inconclusive"
            return Outcome(Check(NAME, status, why, {"side": side}), leak)
        if side == "left" and "position_ids" not in names:
            said.append("the amount of left padding was not varied, as the model takes no position_ids")
            continue
        amount = compare_forms(
            context,
            subject,
            f"{PADS} padded positions on the {side}",
            lambda given, side=side: _real(_padded(given, side).run(), side),
        )
        if amount.differ:
            leak = replace(amount.leak(NAME, padded), usual=subject, clean=subject.x, other=padded.x)
            leak = replace(leak, shares_front=side == "right")
            return Outcome(Check(NAME, "failed", amount.why, {"side": side}), leak)
        if not amount.same:
            return Outcome(Check(NAME, "inconclusive", amount.why, {"side": side}))
    besides = f"; {said[0]}" if said else ""
    return Outcome(Check(NAME, "passed", f"padding is not heard, on the left or on the right{besides}", {"pads": PADS}))


def _as_given(context: AuditContext) -> Outcome:
    """Inputs given with padding: vary its content, and compare each padded item with itself without padding."""
    subject = context.subject
    leak, why = _content(context, subject, "the given")
    if leak is not None or why:
        return Outcome(Check(NAME, "failed" if leak is not None else "inconclusive", why), leak)
    asked = 0
    for item in range(subject.batch):
        real = subject.real[item]
        kept = real.nonzero().flatten()
        whole = len(kept) and int(kept[-1]) - int(kept[0]) + 1 == len(kept)
        if bool(real.all()) or not whole:
            continue
        found = _without_padding(context, item, int(kept[0]), len(kept))
        if isinstance(found, Outcome):
            return found
        asked += 1
    how = f", and {counted(asked, 'item gives', 'items give')} the same outputs without it" if asked else ""
    return Outcome(Check(NAME, "passed", f"the given padding is not heard{how}", {"items": asked}))


def _without_padding(context: AuditContext, item: int, first: int, length: int) -> Outcome | None:
    """Compare an item as given with the same item without its padding. None where they agree."""

    def alone(given: Subject) -> Subject:
        # The other inputs are cut in the same way: the item begins at its first real token.
        one = given.of_items(torch.tensor([item]))
        inputs = {n: v[:, first : first + length] if _along_time(v, given) else v for n, v in _items(one.inputs)}
        x = one.x[:, first : first + length]
        return replace(one, inputs=with_varied(inputs, one.varied, x), x=x)

    def padded(given: Subject) -> Tensor:
        # In its batch, since the padding of the other items must not matter either.
        return given.run()[item : item + 1, first : first + length]

    everywhere = torch.ones(1, length, dtype=torch.bool)
    found = compare_forms(
        context,
        context.subject,
        f"item {item} without its padding",
        lambda given: alone(given).run(),
        padded,
        everywhere,
    )
    if found.same:
        return None
    if not found.differ:
        return Outcome(Check(NAME, "inconclusive", found.why))
    one = context.subject.of_items(torch.tensor([item]))
    leak = replace(
        found.leak(NAME, one), usual=alone(context.subject), clean=alone(context.subject).x, other=one.x, item=0
    )
    return Outcome(Check(NAME, "failed", found.why), replace(leak, shares_front=first == 0))


def _items(inputs: Any) -> list[tuple[str, Any]]:
    return list(inputs.items()) if isinstance(inputs, dict) else []


def _along_time(value: Any, subject: Subject) -> bool:
    return isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[1] == subject.time


def _content(context: AuditContext, padded: Subject, side: str) -> tuple[Leak | None, str]:
    """Change the tokens at padded positions; no real position may move by one bit."""
    pads = ~padded.real
    other = padded.sampler.change(padded.x, pads, context.generator)
    before, after = padded.run(), padded.run(other)
    amounts, moved = difference(before, after)
    if not bool((moved & padded.real).any()):
        return None, ""
    item, query = worst(amounts, moved & padded.real)
    amount = float(amounts[item, query])
    judgement = context.judge_for(padded)(padded.x, other, watched=padded.real, amount=amount, scale=scale_of(before))
    if judgement.is_noise:
        return None, ""
    if not judgement.is_leak:
        return None, f"{side} padding: {judgement.why}"
    sources = tuple(pads[item].nonzero().flatten().tolist())
    leak = Leak(NAME, padded, padded.x, other, padded.real[item], query, sources, item, amount)
    return leak, f"{side} padding: position {query} moved by {amount:.3g} when the padding changed"


def _padded(subject: Subject, side: str) -> Subject:
    """The subject with padding; real tokens keep their positions, where the model takes position_ids."""
    x = subject.x
    pads = x[:, :PADS].flip(1).contiguous()
    length = x.shape[1]
    real = torch.ones(len(x), length + PADS, dtype=torch.long, device=x.device)
    if side == "left":
        whole = torch.cat([pads, x], 1)
        real[:, :PADS] = 0
        positions = (real.cumsum(1) - 1).clamp(min=0)
    else:
        whole = torch.cat([x, pads], 1)
        real[:, length:] = 0
        positions = torch.arange(length + PADS, device=x.device).expand_as(real)
    more = {"position_ids": positions} if "position_ids" in subject.takes else {}
    return subject.with_inputs(whole, attention_mask=real, **more)


def _real(output: Tensor, side: str) -> Tensor:
    return output[:, PADS:] if side == "left" else output[:, :-PADS]
