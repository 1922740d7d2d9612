"""What a comparison found: numbers, texts and the conditions under which they came out.

>>> from rearview.training.comparison.result import Score
>>> Score(loss=1.386, bits=2.0, right=0.5).bits
2.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rearview.training.comparison.baselines import Baselines


@dataclass(frozen=True)
class Score:
    """`loss`: nats a token. `bits`: a character. `right`: the share of tokens that were the first guess."""

    loss: float
    bits: float
    right: float


@dataclass(frozen=True)
class Writing:
    """Texts, the share of repeated runs of characters in them, and of words that the training text has."""

    texts: tuple[str, ...]
    repeated: float
    known_words: float | None


@dataclass(frozen=True)
class Attention:
    """Of one text: `weights[layer][head][query][key]`, in ten-thousandths. `to_answer[layer][head]`: the share of
    attention that goes to the next token, over many texts."""

    weights: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    to_answer: tuple[tuple[float, ...], ...]

    @property
    def mean_to_answer(self) -> float:
        shares = [share for layer in self.to_answer for share in layer]
        return sum(shares) / len(shares)

    @property
    def strongest(self) -> tuple[int, int, float]:
        """The layer and head, from 0, that give the answer most, and how much."""
        shares = ((share, -n, -m) for n, layer in enumerate(self.to_answer) for m, share in enumerate(layer))
        share, layer, head = max(shares)
        return -layer, -head, share


@dataclass(frozen=True)
class Side:
    """One of the two models.

    Args:
        mask: who it may hear.
        training: (step, loss) of every step, in nats a token.
        validation: (step, loss) on held-out text, whole windows read at once.
        at_once: the windows of the exam, read at once as in training.
        exam: the same windows, each token from its prefix alone.
        exam_by_prefix: bits a character, for a prefix of 1, 2, ... tokens.
        writing: what it wrote.
        attention: whom it heard.
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
        """The training loss at the end: the mean of the last twentieth of the steps."""
        count = max(1, len(self.training) // 20)
        return sum(loss for _, loss in self.training[-count:]) / count


@dataclass(frozen=True)
class Conditions:
    """Under which it came out; enough to do it again."""

    settings: dict[str, Any]
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
        """What a token is, in a word."""
        return {"characters": "character", "bytes": "byte"}.get(self.tokenizer, "token")


@dataclass(frozen=True)
class Comparison:
    """The same model with the mask and without it; `compare` makes one, `verdict_of` puts it into words.

    Args:
        baselines: bits a character of what needs no model, on the windows of the exam.
        exam_error: the standard error of the difference between the two exams, in bits a character.
        self_check: the largest difference between exam and validation of the model with the mask, in nats.
        prompts, continuations: what both were given to write on from, and how the text really goes on.
        shown: the tokens of the text whose attention is kept.
    """

    conditions: Conditions
    with_mask: Side
    without_mask: Side
    baselines: Baselines
    exam_error: float
    self_check: float
    prompts: tuple[str, ...]
    continuations: Writing
    shown: tuple[str, ...]
