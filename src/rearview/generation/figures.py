"""The figures of a generation: how many tokens, in how many passes of the model, and what a draft contributed.

>>> figures = GenerationFigures(tokens=90, passes=30, seconds=1.5, drafted=120, accepted=60)
>>> figures.tokens_per_second, figures.tokens_per_pass, figures.acceptance_rate
(60.0, 3.0, 0.5)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class GenerationFigures:
    """Counts over all sequences of a generation so far.

    Args:
        tokens: new tokens.
        passes: forward passes of the model that predict tokens; reading the prompts is not counted.
        seconds: time spent in the steps, including reading the prompts.
        drafted: tokens that a draft proposed, in a tree all nodes; 0 without a draft.
        accepted: those of them that became tokens of the text.
    """

    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    drafted: int = 0
    accepted: int = 0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_pass(self) -> float:
        """New tokens per forward pass of the model, over all sequences of the batch."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def acceptance_rate(self) -> float:
        """The share of drafted tokens that were accepted, from 0 to 1; 0 if none were drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    def __str__(self) -> str:
        speed = f"{self.tokens} tokens in {self.passes} passes of the model, {self.tokens_per_second:.1f} tokens/s"
        if not self.drafted:
            return speed
        return (
            f"{speed}; {self.accepted} of {self.drafted} drafted tokens accepted ({100 * self.acceptance_rate:.1f} %)"
        )
