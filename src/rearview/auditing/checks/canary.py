"""Random-token canary: train a copy on random tokens with the user's own step. They are unpredictable without a leak.

>>> import math, torch
>>> from rearview import causal
>>> from rearview.auditing.checks import canary
>>> from rearview.auditing.context import AuditContext
>>> model = torch.nn.Sequential(torch.nn.Embedding(9, 16), torch.nn.Linear(16, 9))
>>> def step(model, tokens):    # predicts the tokens that it is given
...     return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
>>> tokens = torch.arange(8).view(1, 8)
>>> canary.run(AuditContext.of(model, tokens, causal(), full=True, step=step)).check.status
'failed'
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from rearview.auditing.checks.train_mode import in_training
from rearview.auditing.context import AuditContext, Outcome
from rearview.auditing.evidence.leak import Leak
from rearview.auditing.evidence.rounding import brief
from rearview.auditing.model.reinitialization import MOST_PARAMETERS
from rearview.auditing.model.state import seed_all
from rearview.auditing.reporting.report import Check

NAME = "random-token canary"
STEPS, BATCH, LAST = 120, 8, 20
RATE = 1e-2
# A loss this far below that of guessing is not chance: with 20 batches the standard error is a few hundredths.
MARGIN = 0.1
MOST_TOKENS = 32


def run(context: AuditContext) -> Outcome:
    subject, step = context.subject, context.step
    if step is None:
        return Outcome(Check(NAME, "skipped", "no step= was given"))
    if not isinstance(subject.model, nn.Module) or subject.sampler.tokens is None:
        return Outcome(Check(NAME, "skipped", "the canary needs a module that reads tokens"))
    if subject.parameters > MOST_PARAMETERS:
        return Outcome(Check(NAME, "skipped", f"a copy of {subject.parameters:,} parameters would be too large"))
    # A few tokens are learned faster than the whole vocabulary, and are just as unpredictable.
    tokens = subject.sampler.tokens[:MOST_TOKENS]
    guessing = math.log(len(tokens))
    seed_all(subject.seed)
    try:
        pupil = copy.deepcopy(subject.model)
        with in_training(pupil), torch.enable_grad():
            losses = _trained(pupil, step, tokens, subject.time, context.generator)
    except Exception as error:
        # Copying and training run the user's own code, which may raise anything.
        return Outcome(Check(NAME, "skipped", f"step= failed on a copy of the model: {brief(error)}"))
    if losses is None:
        why = "step= trains another model than the one that it is given; create its optimizer for the given one"
        return Outcome(Check(NAME, "inconclusive", why))
    last = losses[-LAST:]
    reached = float(last.mean())
    error = float(last.std()) / math.sqrt(len(last))
    numbers = {"loss reached": round(reached, 4), "loss of guessing": round(guessing, 4), "steps": len(losses)}
    if not math.isfinite(reached):
        return Outcome(Check(NAME, "inconclusive", "the loss is not finite", numbers))
    if reached < guessing - MARGIN - 3 * error:
        why = f"the model predicts random tokens: the loss fell to {reached:.3f}, below the {guessing:.3f} of guessing"
        leak = Leak.of_form(NAME, subject, query=0, source=1, item=0, amount=guessing - reached)
        return Outcome(Check(NAME, "failed", why, numbers), leak)
    why = f"the model cannot predict random tokens: the loss is {reached:.3f}, that of guessing {guessing:.3f}"
    return Outcome(Check(NAME, "passed", why, numbers))


def _trained(pupil: nn.Module, step: Any, tokens: Tensor, time: int, generator: torch.Generator) -> Tensor | None:
    """The losses of some steps; None where the step neither changes the copy nor returns a loss with gradients."""
    optimizer = torch.optim.AdamW(pupil.parameters(), lr=RATE)
    before = [parameter.detach().clone() for parameter in pupil.parameters()]
    losses = []
    for number in range(STEPS):
        batch = tokens[torch.randint(len(tokens), (BATCH, time), generator=generator)]
        loss = step(pupil, batch)
        if isinstance(loss, Tensor) and loss.requires_grad:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss))
        unchanged = all(torch.equal(a, b) for a, b in zip(before, pupil.parameters(), strict=True))
        if number == 0 and unchanged:
            return None
    return torch.tensor(losses, dtype=torch.float64)
