"""What the numbers say, in words. Every sentence is chosen by the numbers; there is one for each outcome.

The claim on trial has two parts: without the mask the loss falls lower, and the exam fails. "Collapsed" means worse
than something that needs no model (a table of pairs, of single tokens, even guessing) and that the same model with the
mask does beat.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rearview.training.comparison.result import Comparison
from rearview.training.curve import smoothed

CLAIM = "Without the mask a model converges faster, and then fails where the future does not exist."
Claim = Literal["holds", "holds in part", "does not hold", "cannot be told"]
SAID: dict[Claim, str] = {
    "holds": "The claim holds",
    "holds in part": "The claim holds in part",
    "does not hold": "The claim does not hold",
    "cannot be told": "The claim could not be tested",
}

# A difference smaller than this, in bits a character, is none, however sure it is.
SMALLEST = 0.02
# The last position is worth a word if it takes no more than this share of what the others take.
AT_THE_END = 0.7
# Standard errors that a difference has to have.
SURE = 2.0


@dataclass(frozen=True)
class Verdict:
    """`headline`: the finding in a sentence. `loss`, `exam`, `writing`, `attention`: a sentence each."""

    claim: Claim
    headline: str
    loss: str
    exam: str
    writing: str
    attention: str

    @property
    def sentences(self) -> tuple[str, ...]:
        return (self.loss, self.exam, self.writing, self.attention)


def verdict_of(comparison: Comparison) -> Verdict:
    """The words for a comparison."""
    claim, headline = _headline(comparison)
    return Verdict(claim, headline, _loss(comparison), _exam(comparison), _writing(comparison), _attention(comparison))


def loss_change(comparison: Comparison) -> Literal["lower", "same", "higher"]:
    """The loss on held-out text without the mask, against that with it, both as they were trained."""
    change = comparison.without_mask.at_once.bits - comparison.with_mask.at_once.bits
    return "same" if abs(change) < SMALLEST else "lower" if change < 0 else "higher"


def exam_change(comparison: Comparison) -> Literal["collapsed", "worse", "same", "better"]:
    """The exam without the mask, against that with it."""
    change = comparison.without_mask.exam.bits - comparison.with_mask.exam.bits
    if abs(change) < max(SMALLEST, SURE * comparison.exam_error):
        return "same"
    if change < 0:
        return "better"
    ours, theirs = comparison.with_mask.exam.bits, comparison.without_mask.exam.bits
    return "collapsed" if any(ours < known < theirs for _, known in _tables(comparison)) else "worse"


def beaten_by(comparison: Comparison, bits: float) -> str | None:
    """The simplest thing that does better than this many bits, if any does."""
    return next((name for name, known in _tables(comparison) if bits > known), None)


def _tables(comparison: Comparison) -> list[tuple[str, float]]:
    """What needs no model, the simplest first."""
    known, token = comparison.baselines, comparison.conditions.token
    found = [
        (f"guessing evenly among all {comparison.conditions.vocab_size:,} {token}s", known.even),
        (f"knowing only how often each {token} occurs", known.singles),
    ]
    return found if known.pairs is None else [*found, (f"a table of which {token} follows which", known.pairs)]


def first_below(comparison: Comparison) -> int | None:
    """The step at which the training loss without the mask went below where the other ended."""
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
            f"Too little was learned to tell: even with the mask the exam takes {other:.2f} bits a character, worse "
            f"than {beaten_by(comparison, other)}."
        )
    if loss == "lower" and outcome == "collapsed":
        return "holds", (
            f"Without the mask the loss says {at_once:.2f} bits a character and the exam {exam:.2f}, worse than "
            f"{beaten_by(comparison, exam)}; with the mask both say {other:.2f}."
        )
    if loss == "lower" and outcome == "worse":
        return "holds in part", (
            f"Without the mask the loss says {at_once:.2f} bits a character and the exam {exam:.2f}; with the mask "
            f"both say {other:.2f}: a worse exam, and no collapse."
        )
    if outcome in ("collapsed", "worse"):
        how = "no lower than" if loss == "same" else "higher than"
        return "holds in part", (
            f"Without the mask the exam takes {exam:.2f} bits a character instead of {other:.2f}, though the loss was "
            f"{how} with it."
        )
    verb = "does as well" if outcome == "same" else "does better"
    return "does not hold", (
        f"Without the mask the model {verb} in the exam here: {exam:.2f} bits a character, and {other:.2f} with it."
    )


def _loss(comparison: Comparison) -> str:
    ours, theirs = comparison.with_mask, comparison.without_mask
    said = {"lower": "falls lower", "same": "ends where the other does", "higher": "stays higher"}
    text = (
        f"The loss without the mask {said[loss_change(comparison)]}: {theirs.at_once.bits:.2f} bits a character on "
        f"held-out text, and {ours.at_once.bits:.2f} with it."
    )
    step, steps = first_below(comparison), ours.training[-1][0]
    if step is None:
        return f"{text} Its training loss never gets below where the other ends."
    return f"{text} Its training loss is below where the other ends from step {step} of {steps} on."


def _exam(comparison: Comparison) -> str:
    ours, theirs = comparison.with_mask.exam, comparison.without_mask.exam
    outcome = exam_change(comparison)
    text = (
        f"From the prefix alone it takes {theirs.bits:.2f} bits a character without the mask and {ours.bits:.2f} with "
        f"it; the next {comparison.conditions.token} is the first guess in {theirs.right:.0%} and {ours.right:.0%}."
    ).replace("%", " %")
    if outcome in ("same", "better"):
        end = {"same": "The difference is within its error.", "better": "The model without the mask is better."}[
            outcome
        ]
    elif beaten := beaten_by(comparison, theirs.bits):
        end = f"Without the mask that is worse than {beaten}."
    else:
        end = "Without the mask that is worse, and still better than what needs no model."
    return f"{text} {end}{_at_the_end(comparison)}"


def _at_the_end(comparison: Comparison) -> str:
    """The last position of a window has no answer in sight in training either: there it had to learn."""
    *before, last = comparison.without_mask.exam_by_prefix
    if not before or last > AT_THE_END * sum(before) / len(before):
        return ""
    return (
        f" With a full window before it, it takes {last:.2f}: the last position was the one that never saw its answer "
        "in training."
    )


def _writing(comparison: Comparison) -> str:
    real, ours, theirs = comparison.continuations, comparison.with_mask.writing, comparison.without_mask.writing

    def share(value: float | None) -> str:
        return "none at all" if value is None else f"{100 * value:.0f} %"

    return (
        f"Of the words it writes, the training text knows {share(theirs.known_words)} without the mask, "
        f"{share(ours.known_words)} with it, and {share(real.known_words)} of the real text's; "
        f"{share(theirs.repeated)} of it is repetition, {share(ours.repeated)} with the mask."
    )


def _attention(comparison: Comparison) -> str:
    heard = comparison.without_mask.attention
    token = comparison.conditions.token
    layer, head, most = heard.strongest
    even = 1 / len(comparison.shown)
    times = heard.mean_to_answer / even
    text = (
        f"Without the mask {100 * heard.mean_to_answer:.1f} % of the attention goes to the next {token}, the answer, "
        f"{times:.1f} times an even share; in layer {layer + 1}, head {head + 1}, it is {100 * most:.0f} %."
    )
    return f"{text} With the mask it is exactly 0." if comparison.with_mask.attention.mean_to_answer == 0 else text
