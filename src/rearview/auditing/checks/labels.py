"""Label alignment: the loss must train the output at each position on the next token, not on one in its input.

>>> import torch
>>> from rearview import causal
>>> from rearview.auditing.checks import labels
>>> from rearview.auditing.context import AuditContext
>>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
>>> def loss(model, tokens, labels):    # forgets to shift
...     return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
>>> tokens = torch.arange(8).view(1, 8)
>>> labels.run(AuditContext.of(model, tokens, causal(), full=True, loss=loss)).check.why
'the loss trains the output at position 1 on the token at position 1, which is in its input: shift the labels by one'

Each label is changed in turn; the output whose gradient changes is the one that is trained on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.subject import Subject
from rearview.auditing.reporting.report import Check

NAME = "label alignment"


def run(context: AuditContext) -> Outcome:
    subject = context.subject
    if subject.x.is_floating_point() or subject.x.ndim != 2:
        return Outcome(Check(NAME, "skipped", "only labels of tokens can be checked"))
    ask = _loss_of(context)
    if ask is None:
        return Outcome(Check(NAME, "skipped", "there is no loss: the model takes no labels, and no loss= was given"))
    labels, ahead = _labels(subject)
    try:
        before = _gradient(subject, ask, labels)
    except Exception as error:
        # The loss is the user's own code, which may raise anything.
        return Outcome(Check(NAME, "skipped", f"the loss could not be traced to the outputs: {brief(error)}"))
    shifts: dict[int, int] = {}
    for position in sorted({1, 2, subject.time // 2, subject.time - 1}):
        after = _gradient(subject, ask, _with_another(labels, position))
        moved = (after - before).abs().amax(-1) > 1e-3 * float(before.abs().max())
        if bool(moved[1:].any()):
            item = int(moved[1:].any(1).nonzero()[0]) + 1
            return _failed(subject, f"item {item} is trained on a label of item 0", position, position)
        asked = moved[0].nonzero().flatten().tolist()
        if len(asked) > 1:
            return _failed(
                subject, f"the label at position {position} trains the outputs at positions {asked}", asked[0], position
            )
        if asked:
            shifts[position] = position + ahead - asked[0]
    if not shifts:
        return Outcome(
            Check(NAME, "inconclusive", "no label changed the loss, so no misalignment could have been seen")
        )
    unequal = [(position, shift) for position, shift in shifts.items() if shift != 1]
    if unequal and _is_own(context) and all(shift == 0 for shift in shifts.values()):
        context.conditions.append("the model does not shift its labels, so the caller must pass the next tokens")
        why = "the model does not shift its labels, so the caller must pass the next tokens"
        return Outcome(Check(NAME, "passed", why, {"labels": len(shifts), "shift": 0}))
    if unequal:
        position, shift = unequal[0]
        query, token = position + ahead - shift, position + ahead
        why = f"the loss trains the output at position {query} on the token at position {token}"
        why += ": the labels may be shifted twice" if shift > 1 else ", which is in its input: shift the labels by one"
        return _failed(subject, why, query, token)
    return Outcome(
        Check(NAME, "passed", "each output is trained on the next token", {"labels": len(shifts), "shift": 1})
    )


def _labels(subject: Subject) -> tuple[Tensor, int]:
    """The labels to start from, and by how many positions each one is ahead of the same token in the input."""
    given = subject.inputs.get("labels") if isinstance(subject.inputs, dict) else None
    if isinstance(given, Tensor) and given.shape == subject.x.shape:
        real = given[:, :-1] >= 0
        if bool(real.any()) and torch.equal(given[:, :-1][real], subject.x[:, 1:][real]):
            return given.clone(), 1
        return given.clone(), 0
    return subject.x.clone(), 0


def _with_another(labels: Tensor, position: int) -> Tensor:
    """Another label at one position of item 0: one that occurs, since a loss may have fewer labels than tokens."""
    changed = labels.clone()
    others = labels[(labels != labels[0, position]) & (labels >= 0)]
    changed[0, position] = others[0] if len(others) else labels[0, position] + 1
    return changed


def _is_own(context: AuditContext) -> bool:
    """Whether the loss is the model's own, and the user gave no labels."""
    inputs = context.subject.inputs
    return context.loss is None and not (isinstance(inputs, dict) and "labels" in inputs)


def _failed(subject: Subject, why: str, query: int, source: int) -> Outcome:
    leak = Leak.of_form(NAME, subject, query=query, source=source, item=0, amount=0.0)
    return Outcome(Check(NAME, "failed", why), leak)


LossAndOutput = Callable[[Subject, Tensor], tuple[Tensor, Tensor]]


def _loss_of(context: AuditContext) -> LossAndOutput | None:
    """A function from labels to the loss and the outputs; None where there is no loss."""
    loss = context.loss
    if loss is not None:
        return lambda subject, labels: _user_loss(subject, labels, loss)
    return _own_loss if "labels" in context.subject.takes else None


def _own_loss(subject: Subject, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The loss as Hugging Face models compute it: model(tokens, labels=labels).loss."""
    inputs = subject.inputs
    bare = (
        replace(subject, inputs={k: v for k, v in inputs.items() if k != "labels"})
        if isinstance(inputs, dict)
        else subject
    )
    returned = bare.returned(labels=labels)
    return returned.loss, _raw(subject, returned)


def _user_loss(subject: Subject, labels: Tensor, loss: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Capture the outputs that the user's loss gets from the model."""
    captured: list[Any] = []

    class Watched:
        """The model with its outputs recorded; every other attribute is its own."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            captured.append(subject.model(*args, **kwargs))
            return captured[-1]

        def __getattr__(self, name: str) -> Any:
            return getattr(subject.model, name)

    value = loss(Watched(), subject.x, labels)
    if not captured:
        raise ValueError("the loss did not call the model")
    return value, _raw(subject, captured[0])


def _raw(subject: Subject, returned: Any) -> Tensor:
    for step in subject.output.path:
        returned = getattr(returned, step) if isinstance(step, str) and hasattr(returned, step) else returned[step]
    return returned


def _gradient(subject: Subject, ask: LossAndOutput, labels: Tensor) -> Tensor:
    """The gradient of the loss with respect to each output, [batch, time, features]."""
    with torch.enable_grad():
        loss, output = ask(replace(subject, training=True), labels)
        (gradient,) = torch.autograd.grad(loss.sum(), output)
    return gradient.movedim((subject.output.batch_axis, subject.output.time_axis), (0, 1)).flatten(2).detach().cpu()
