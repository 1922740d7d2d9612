"""The conclusion of a comparison in words. The numbers choose every sentence; there is one for each outcome.

The claim has two parts: without the mask the loss falls lower, in training and on held-out text, and the exam fails.
"Collapsed" means worse than a baseline (a table of pairs, of single tokens, uniform guessing) that the same model with
the mask does beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rearview.comparison.result import Comparison
from rearview.training.curve import smoothed

CLAIM = "Without the mask a model converges faster, and then fails where there is no future to look at."
Claim = Literal["holds", "holds in part", "does not hold", "cannot be told"]
OUTCOMES: dict[Claim, str] = {
    "holds": "The claim holds",
    "holds in part": "The claim holds in part",
    "does not hold": "The claim does not hold",
    "cannot be told": "The claim could not be tested",
}

# A smaller difference, in bits per character, counts as none, even if it is significant.
SMALLEST = 0.02
# The last position is mentioned if its loss is at most this fraction of the mean of the others.
AT_THE_END = 0.7
# A difference of fewer standard errors is not significant.
SIGNIFICANT = 2.0


@dataclass(frozen=True)
class Conclusion:
    """Whether the claim holds, the main result in one sentence, and a sentence or two on each part."""

    claim: Claim
    headline: str
    loss: str
    exam: str
    writing: str
    attention: str

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences on the parts."""
        return (self.loss, self.exam, self.writing, self.attention)


def conclusion_of(comparison: Comparison) -> Conclusion:
    """The conclusion of a comparison."""
    claim, headline = _headline(comparison)
    parts = (_loss(comparison), _exam(comparison), _writing(comparison), _attention(comparison))
    return Conclusion(claim, headline, *parts)


def loss_change(comparison: Comparison) -> Literal["lower", "same", "higher"]:
    """The loss without the mask relative to that with it, on held-out text that is read as in training."""
    change = comparison.without_mask.at_once.bits - comparison.with_mask.at_once.bits
    if abs(change) < max(SMALLEST, SIGNIFICANT * comparison.at_once_error):
        return "same"
    return "lower" if change < 0 else "higher"


def exam_change(comparison: Comparison) -> Literal["collapsed", "worse", "same", "better"]:
    """The exam without the mask relative to that with it."""
    change = comparison.without_mask.exam.bits - comparison.with_mask.exam.bits
    if abs(change) < max(SMALLEST, SIGNIFICANT * comparison.exam_error):
        return "same"
    if change < 0:
        return "better"
    ours, theirs = comparison.with_mask.exam.bits, comparison.without_mask.exam.bits
    return "collapsed" if any(ours < known < theirs for _, known in _baselines(comparison)) else "worse"


def beaten_by(comparison: Comparison, bits: float) -> str | None:
    """The simplest baseline that is better than this many bits, if there is one."""
    return next((name for name, known in _baselines(comparison) if bits > known), None)


def _baselines(comparison: Comparison) -> list[tuple[str, float]]:
    """The baselines, the simplest first."""
    known, token = comparison.baselines, comparison.conditions.token
    found = [
        (f"guessing uniformly among all {comparison.conditions.vocab_size:,} {token}s", known.even),
        (f"knowing only how often each {token} occurs", known.singles),
    ]
    return found if known.pairs is None else [*found, (f"a table of which {token} follows which", known.pairs)]


def first_below(comparison: Comparison) -> int | None:
    """The first step at which the training loss without the mask is below the final loss with it."""
    target = comparison.with_mask.final_loss
    steps = [step for step, _ in comparison.without_mask.training]
    losses = smoothed([loss for _, loss in comparison.without_mask.training], 10)
    return next((step for step, loss in zip(steps, losses, strict=True) if loss < target), None)


def _headline(comparison: Comparison) -> tuple[Claim, str]:
    at_once, exam = comparison.without_mask.at_once.bits, comparison.without_mask.exam.bits
    other = comparison.with_mask.exam.bits
    loss, outcome = loss_change(comparison), exam_change(comparison)
    if other > comparison.baselines.singles:
        return "cannot be told", (
            f"The models learned too little: even with the mask the exam takes {other:.2f} bits per character, worse "
            f"than {beaten_by(comparison, other)}."
        )
    if loss == "lower" and outcome == "collapsed":
        both = (
            f"Without the mask the loss is {at_once:.2f} bits per character and the exam takes {exam:.2f}, worse than "
            f"{beaten_by(comparison, exam)}; with the mask both are {other:.2f}."
        )
        if first_below(comparison) is None:
            return "holds in part", f"{both} But its training loss never falls below the final loss with the mask."
        return "holds", both
    if loss == "lower" and outcome == "worse":
        return "holds in part", (
            f"Without the mask the loss is {at_once:.2f} bits per character and the exam takes {exam:.2f}; with the "
            f"mask both are {other:.2f}. The exam is worse, but the model did not collapse."
        )
    if outcome in ("collapsed", "worse"):
        how = "about the same as" if loss == "same" else "higher than"
        return "holds in part", (
            f"Without the mask the exam takes {exam:.2f} bits per character instead of {other:.2f}, although the loss "
            f"was {how} with the mask."
        )
    verb = "as good" if outcome == "same" else "better"
    return "does not hold", (
        f"Without the mask the model is {verb} in the exam: {exam:.2f} bits per character, and {other:.2f} with it."
    )


def _loss(comparison: Comparison) -> str:
    ours, theirs = comparison.with_mask, comparison.without_mask
    change = {"lower": "falls lower", "same": "is about the same", "higher": "stays higher"}
    text = (
        f"The loss without the mask {change[loss_change(comparison)]}: {theirs.at_once.bits:.2f} bits per character on "
        f"held-out text, and {ours.at_once.bits:.2f} with it."
    )
    step, steps = first_below(comparison), ours.training[-1][0]
    if step is None:
        return f"{text} Its training loss never falls below the final loss with the mask."
    return f"{text} Its training loss is below the final loss with the mask from step {step} of {steps} on."


def _exam(comparison: Comparison) -> str:
    ours, theirs = comparison.with_mask.exam, comparison.without_mask.exam
    outcome = exam_change(comparison)
    text = (
        f"From the prefix alone, the model without the mask takes {theirs.bits:.2f} bits per character and the one "
        f"with it {ours.bits:.2f}; they predict {theirs.right:.0%} and {ours.right:.0%} of the next "
        f"{comparison.conditions.token}s."
    ).replace("%", " %")
    if outcome == "same":
        end = "The difference is within its error."
    elif outcome == "better":
        end = "The model without the mask is better."
    elif beaten := beaten_by(comparison, theirs.bits):
        end = f"Without the mask that is worse than {beaten}."
    else:
        end = "Without the mask that is worse, but still better than every baseline."
    return f"{text} {end}{_at_the_end(comparison)}"


def _at_the_end(comparison: Comparison) -> str:
    """In training the last position of a window never has its answer in the window, so there the model must predict."""
    *before, last = comparison.without_mask.exam_by_prefix
    if not before or last > AT_THE_END * sum(before) / len(before):
        return ""
    return (
        f" After a full window it takes {last:.2f}: in training, the last position is the only one that never sees its "
        "answer."
    )


def _writing(comparison: Comparison) -> str:
    real, ours, theirs = comparison.continuations, comparison.with_mask.writing, comparison.without_mask.writing

    def share(value: float | None) -> str:
        return "none" if value is None else f"{100 * value:.0f} %"

    return (
        f"Of the words generated without the mask, {share(theirs.known_words)} occur in the training text; with the "
        f"mask {share(ours.known_words)}, and in the real text {share(real.known_words)}. Repetition makes up "
        f"{share(theirs.repeated)} of the text without the mask and {share(ours.repeated)} with it."
    )


def _attention(comparison: Comparison) -> str:
    attention = comparison.without_mask.attention
    token = comparison.conditions.token
    layer, head, most = attention.strongest
    uniform = 1 / len(comparison.shown)
    times = attention.mean_to_answer / uniform
    text = (
        f"Without the mask {100 * attention.mean_to_answer:.1f} % of the attention goes to the next {token}, the "
        f"answer: {times:.1f} times as much as uniform attention would give it, and {100 * most:.0f} % in the head "
        f"that attends to it most (layer {layer}, head {head})."
    )
    return f"{text} With the mask it is exactly 0." if comparison.with_mask.attention.mean_to_answer == 0 else text
