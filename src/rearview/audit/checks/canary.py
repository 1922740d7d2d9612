"""Canary: train a copy on random tokens, through the user's own step. Nobody can foresee them, so the loss must stay.

>>> import math, torch
>>> from rearview import causal
>>> from rearview.audit.checks import canary
>>> from rearview.audit.trial import Trial
>>> model = torch.nn.Sequential(torch.nn.Embedding(9, 16), torch.nn.Linear(16, 9))
>>> def step(model, tokens):    # predicts the tokens that it is given
...     return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
>>> tokens = torch.arange(8).view(1, 8)
>>> canary.run(Trial.of(model, tokens, causal(), full=True, step=step)).check.status
'failed'
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from rearview.audit.checks.training import in_training
from rearview.audit.leak import Leak
from rearview.audit.noise import brief
from rearview.audit.report import Check
from rearview.audit.state import seed_all, twin_of
from rearview.audit.trial import Outcome, Trial
from rearview.audit.twins import MOST_PARAMETERS

NAME = "random-token canary"
STEPS, BATCH, LAST = 120, 8, 20
RATE = 1e-2
# A loss this far below that of guessing is no luck: with 20 batches the error is a few hundredths.
MARGIN = 0.1
MOST_TOKENS = 32


def run(trial: Trial) -> Outcome:
    subject, step = trial.subject, trial.step
    if step is None:
        return Outcome(Check(NAME, "skipped", "step= was not given"))
    if not isinstance(subject.model, nn.Module) or subject.drawer.tokens is None:
        return Outcome(Check(NAME, "skipped", "the canary needs a module that reads tokens"))
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(NAME, "skipped", f"a copy of {subject.parameters:,} parameters would be too large"))
    # A few of the tokens are learned sooner than all, and are as impossible to foresee.
    tokens = subject.drawer.tokens[:MOST_TOKENS]
    guessing = math.log(len(tokens))
    seed_all(subject.seed)
    try:
        twin = twin_of(subject.model)
        with in_training(twin), torch.enable_grad():
            losses = _trained(twin, step, tokens, subject.time, trial.generator)
    except Exception as error:
        return Outcome(Check(NAME, "skipped", f"the step failed on a copy of the model: {brief(error)}"))
    if losses is None:
        why = "the step trains another model than the one that it is given: make its optimiser from that one"
        return Outcome(Check(NAME, "inconclusive", why))
    last = losses[-LAST:]
    reached = float(last.mean())
    error = float(last.std()) / math.sqrt(len(last))
    numbers = {"loss reached": round(reached, 4), "loss of guessing": round(guessing, 4), "steps": len(losses)}
    if not math.isfinite(reached):
        return Outcome(Check(NAME, "inconclusive", "the loss is not finite", numbers))
    if reached < guessing - MARGIN - 3 * error:
        why = f"random tokens are foreseen: the loss fell to {reached:.3f}, and guessing costs {guessing:.3f}"
        leak = Leak.of_form(NAME, subject, query=0, source=1, item=0, amount=guessing - reached)
        return Outcome(Check(NAME, "failed", why, numbers), leak)
    why = f"random tokens stay unforeseen: the loss is {reached:.3f}, and guessing costs {guessing:.3f}"
    return Outcome(Check(NAME, "passed", why, numbers))


def _trained(twin: nn.Module, step: Any, tokens: Tensor, time: int, generator: torch.Generator) -> Tensor | None:
    """The losses of some steps; None when the step leaves the copy as it was and gives no gradient either."""
    optimiser = torch.optim.AdamW(twin.parameters(), lr=RATE)
    before = [parameter.detach().clone() for parameter in twin.parameters()]
    losses = []
    for number in range(STEPS):
        batch = tokens[torch.randint(len(tokens), (BATCH, time), generator=generator)]
        loss = step(twin, batch)
        if isinstance(loss, Tensor) and loss.requires_grad:
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))
        unchanged = all(torch.equal(a, b) for a, b in zip(before, twin.parameters(), strict=True))
        if number == 0 and unchanged:
            return None
    return torch.tensor(losses, dtype=torch.float64)
