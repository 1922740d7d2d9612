"""The result of a comparison: numbers, texts and the conditions under which they were measured.

>>> from rearview.comparison.result import Score
>>> Score(loss=1.386, bits=2.0, right=0.5).bits
2.0
"""

from __future__ import annotations

from dataclasses import dataclass

from rearview.comparison.baselines import Baselines
from rearview.comparison.settings import Settings


@dataclass(frozen=True)
class Score:
    """The loss in nats per token, in bits per character, and the fraction of tokens that were predicted right."""

    loss: float
    bits: float
    right: float


@dataclass(frozen=True)
class Writing:
    """Texts, their repetition, and the fraction of their words that occur in the training text."""

    texts: tuple[str, ...]
    repeated: float
    known_words: float | None


@dataclass(frozen=True)
class Attention:
    """The attention of a model.

    Args:
        weights: `weights[layer][head][query][key]` on one row of text, in ten-thousandths.
        to_answer: `to_answer[layer][head]`, the mean attention to the next token, over many rows.
    """

    weights: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    to_answer: tuple[tuple[float, ...], ...]

    @property
    def mean_to_answer(self) -> float:
        """The mean attention to the next token over all heads."""
        shares = [share for layer in self.to_answer for share in layer]
        return sum(shares) / len(shares)

    @property
    def strongest(self) -> tuple[int, int, float]:
        """The layer and the head, from 0, that attend most to the answer, and how much."""
        shares = ((share, -n, -m) for n, layer in enumerate(self.to_answer) for m, share in enumerate(layer))
        share, layer, head = max(shares)
        return -layer, -head, share


@dataclass(frozen=True)
class Side:
    """One of the two models.

    Args:
        mask: its mask.
        training: (step, loss) of every step, in nats per token.
        validation: (step, loss) on held-out text, with whole windows read at once.
        at_once: the score on the windows of the exam, read at once as in training.
        exam: the score on the same windows, with each token predicted from its prefix alone.
        exam_by_prefix: bits per character, for a prefix of 1, 2, ... tokens.
        writing: the text that it generated.
        attention: the attention of its heads.
    """

    mask: str
    training: tuple[tuple[int, float], ...]
    validation: tuple[tuple[int, float], ...]
    at_once: Score
    exam: Score
    exam_by_prefix: tuple[float, ...]
    writing: Writing
    attention: Attention

    @property
    def final_loss(self) -> float:
        """The training loss at the end: the mean over the last twentieth of the steps."""
        count = max(1, len(self.training) // 20)
        return sum(loss for _, loss in self.training[-count:]) / count


@dataclass(frozen=True)
class Conditions:
    """The conditions of the measurement, sufficient to repeat it."""

    settings: Settings
    text: str
    command: str
    fingerprint: str
    characters: int
    documents: int
    tokenizer: str
    vocab_size: int
    parameters: int
    exam_windows: int
    precision: str
    threads: int
    versions: dict[str, str]

    @property
    def token(self) -> str:
        """The word for a token of this tokenizer."""
        return {"characters": "character", "bytes": "byte"}.get(self.tokenizer, "token")


@dataclass(frozen=True)
class Comparison:
    """The same model with the mask and without it. `compare` returns one, and `conclusion_of` puts it into words.

    Args:
        baselines: the bits per character of the baselines, on the windows of the exam.
        exam_error: the standard error of the difference between the two exams, in bits per character.
        at_once_error: the same for the windows read at once.
        self_check: the largest difference between exam and validation of the model with the mask, in nats.
        prompts, continuations: the prompts of both models, and their continuations in the held-out text.
        shown: the tokens of the row whose attention weights are kept.
    """

    conditions: Conditions
    with_mask: Side
    without_mask: Side
    baselines: Baselines
    exam_error: float
    at_once_error: float
    self_check: float
    prompts: tuple[str, ...]
    continuations: Writing
    shown: tuple[str, ...]
