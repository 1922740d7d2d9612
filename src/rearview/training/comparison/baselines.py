"""What no model is needed for: even guessing, how often each token occurs, and which token follows which.

Counted on the training text, measured on the targets of the exam. They say what a number of bits is worth: a model
that does worse than a table of pairs has not learned to go on with a text.

>>> from rearview.text import CharTokenizer
>>> import torch
>>> corpus = Corpus.of(["ab" * 50], CharTokenizer("ab"))
>>> found = baselines(corpus, Batch(torch.tensor([[0, 1, 0]]), torch.tensor([[1, 0, 1]])), vocab_size=3)
>>> [round(loss, 2) for loss in (found.even, found.singles, found.pairs)]
[1.1, 0.72, 0.02]
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.training.batches import Batch
from rearview.training.corpus import Corpus

# Pairs that the training text does not have fall back on single tokens with this many made-up counts.
TRUST = 1.0
# A table of pairs beyond this is not made: a BPE of 16384 would need a gigabyte.
MOST_TOKENS = 8192


@dataclass(frozen=True)
class Baselines:
    """In nats a token, or after `Baselines.scaled` in whatever it was scaled to. `pairs` is None for huge alphabets."""

    even: float
    singles: float
    pairs: float | None

    def scaled(self, by: float) -> Baselines:
        return Baselines(self.even * by, self.singles * by, None if self.pairs is None else self.pairs * by)


def baselines(train: Corpus, batch: Batch, *, vocab_size: int) -> Baselines:
    """The mean loss of each on the targets of a batch."""
    tokens = train.tokens.long()
    singles = torch.bincount(tokens, minlength=vocab_size).double() + 1
    singles /= singles.sum()
    return Baselines(
        math.log(vocab_size),
        -float(singles[batch.targets].log().mean()),
        _pairs(tokens, singles, batch) if vocab_size <= MOST_TOKENS else None,
    )


def _pairs(tokens: Tensor, singles: Tensor, batch: Batch) -> float:
    size = len(singles)
    counts = torch.bincount(tokens[:-1] * size + tokens[1:], minlength=size * size).view(size, size).double()
    known = counts[batch.tokens, batch.targets] + TRUST * singles[batch.targets]
    return -float((known / (counts.sum(1)[batch.tokens] + TRUST)).log().mean())
