"""Alignment of labels: the loss at a position must be about the next token, not about one that is in the input.

>>> import torch
>>> from rearview import causal
>>> from rearview.audit.checks import labels
>>> from rearview.audit.trial import Trial
>>> model = torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Linear(4, 9))
>>> def loss(model, tokens, labels):    # forgets to shift
...     return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())
>>> tokens = torch.arange(8).view(1, 8)
>>> labels.run(Trial.of(model, tokens, causal(), full=True, loss=loss)).check.why
'the loss asks the output at position 1 for the token at position 1, which is in its input: shift by one'

Each label is changed in turn; the output whose gradient changes is the one that is asked for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from rearview.audit.leak import Leak
from rearview.audit.noise import brief
from rearview.audit.report import Check
from rearview.audit.subject import Subject
from rearview.audit.trial import Outcome, Trial

NAME = "label alignment"


def run(trial: Trial) -> Outcome:
    subject = trial.subject
    if subject.x.is_floating_point() or subject.x.ndim != 2:
        return Outcome(Check(NAME, "skipped", "labels are aligned for tokens only"))
    ask = _loss_of(trial)
    if ask is None:
        return Outcome(Check(NAME, "skipped", "no loss: the model takes no labels, and loss= was not given"))
    labels, ahead = _labels(subject)
    try:
        before = _gradient(subject, ask, labels)
    except Exception as error:
        return Outcome(Check(NAME, "skipped", f"the loss was not followed to the outputs: {brief(error)}"))
    shifts: dict[int, int] = {}
    for position in sorted({1, 2, subject.time // 2, subject.time - 1}):
        after = _gradient(subject, ask, _with_another(labels, position))
        moved = (after - before).abs().amax(-1) > 1e-3 * float(before.abs().max())
        if bool(moved[1:].any()):
            item = int(moved[1:].any(1).nonzero()[0]) + 1
            return _failed(subject, f"a label of item 0 is asked of item {item}", position, position)
        asked = moved[0].nonzero().flatten().tolist()
        if len(asked) > 1:
            return _failed(
                subject, f"the label at position {position} is asked of positions {asked}", asked[0], position
            )
        if asked:
            shifts[position] = position + ahead - asked[0]
    if not shifts:
        return Outcome(Check(NAME, "inconclusive", "no label changed the loss, so nothing could have been seen"))
    unequal = [(position, shift) for position, shift in shifts.items() if shift != 1]
    if unequal and _is_own(trial) and all(shift == 0 for shift in shifts.values()):
        trial.conditions.append("the model does not shift its labels: give it the next tokens, not the same ones")
        why = "the model takes labels as they are; they must be the next tokens, which the caller has to shift"
        return Outcome(Check(NAME, "passed", why, {"labels": len(shifts), "shift": 0}))
    if unequal:
        position, shift = unequal[0]
        query, token = position + ahead - shift, position + ahead
        why = f"the loss asks the output at position {query} for the token at position {token}"
        why += ": shifted twice?" if shift > 1 else ", which is in its input: shift by one"
        return _failed(subject, why, query, token)
    return Outcome(
        Check(NAME, "passed", "each output is asked for the next token", {"labels": len(shifts), "shift": 1})
    )


def _labels(subject: Subject) -> tuple[Tensor, int]:
    """The labels to begin with, and how far ahead of its place each one is a token of the input."""
    given = subject.inputs.get("labels") if isinstance(subject.inputs, dict) else None
    if isinstance(given, Tensor) and given.shape == subject.x.shape:
        real = given[:, :-1] >= 0
        if bool(real.any()) and torch.equal(given[:, :-1][real], subject.x[:, 1:][real]):
            return given.clone(), 1
        return given.clone(), 0
    return subject.x.clone(), 0


def _with_another(labels: Tensor, position: int) -> Tensor:
    """Another label at one position of item 0: one that occurs, as a loss may know fewer labels than tokens."""
    changed = labels.clone()
    others = labels[(labels != labels[0, position]) & (labels >= 0)]
    changed[0, position] = others[0] if len(others) else labels[0, position] + 1
    return changed


def _is_own(trial: Trial) -> bool:
    """Is it the model's own loss, asked with labels that the user did not give?"""
    inputs = trial.subject.inputs
    return trial.loss is None and not (isinstance(inputs, dict) and "labels" in inputs)


def _failed(subject: Subject, why: str, query: int, source: int) -> Outcome:
    leak = Leak.of_form(NAME, subject, query=query, source=source, item=0, amount=0.0)
    return Outcome(Check(NAME, "failed", why), leak)


Ask = Callable[[Subject, Tensor], tuple[Tensor, Tensor]]


def _loss_of(trial: Trial) -> Ask | None:
    """How to get the loss and the outputs for some labels."""
    loss = trial.loss
    if loss is not None:
        return lambda subject, labels: _user_loss(subject, labels, loss)
    return _own_loss if "labels" in trial.subject.takes else None


def _own_loss(subject: Subject, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What Hugging Face models do: model(tokens, labels=labels).loss."""
    inputs = subject.inputs
    bare = (
        replace(subject, inputs={k: v for k, v in inputs.items() if k != "labels"})
        if isinstance(inputs, dict)
        else subject
    )
    returned = bare.returned(labels=labels)
    return returned.loss, _raw(subject, returned)


def _user_loss(subject: Subject, labels: Tensor, loss: Callable[..., Any]) -> tuple[Tensor, Tensor]:
    """Catch the outputs on their way from the model to the user's loss."""
    caught: list[Any] = []

    class Watched:
        """The model, with its outputs kept; everything else is its own."""

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            caught.append(subject.model(*args, **kwargs))
            return caught[-1]

        def __getattr__(self, name: str) -> Any:
            return getattr(subject.model, name)

    value = loss(Watched(), subject.x, labels)
    if not caught:
        raise ValueError("the loss did not call the model")
    return value, _raw(subject, caught[0])


def _raw(subject: Subject, returned: Any) -> Tensor:
    for step in subject.output.path:
        returned = getattr(returned, step) if isinstance(step, str) and hasattr(returned, step) else returned[step]
    return returned


def _gradient(subject: Subject, ask: Ask, labels: Tensor) -> Tensor:
    """How the loss depends on each output: [batch, time, features]."""
    with torch.enable_grad():
        loss, output = ask(replace(subject, training=True), labels)
        (gradient,) = torch.autograd.grad(loss.sum(), output)
    return gradient.movedim((subject.output.batch_axis, subject.output.time_axis), (0, 1)).flatten(2).detach().cpu()
