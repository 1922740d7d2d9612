"""Baselines that need no model: uniform guessing, the frequency of each token, and the frequency of each pair.

They are counted on the training text, of which very long ones are sampled, and measured on the targets of the exam.
They give a loss its scale: a model that is worse than a table of pairs has not learned to continue a text.

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

# The weight of the single-token frequencies in the frequencies of pairs, in counts: it smooths rare pairs.
SMOOTHING = 1.0
# There is no table of pairs for larger vocabularies: 16,384 tokens would need a gigabyte.
MOST_TOKENS = 8192


@dataclass(frozen=True)
class Baselines:
    """Losses, in nats per token unless they were scaled. `pairs` is None for large vocabularies."""

    even: float
    singles: float
    pairs: float | None

    def scaled(self, by: float) -> Baselines:
        """The losses in another unit."""
        return Baselines(self.even * by, self.singles * by, None if self.pairs is None else self.pairs * by)


def baselines(train: Corpus, batch: Batch, *, vocab_size: int) -> Baselines:
    """The mean loss of each baseline on the targets of a batch."""
    counts = torch.zeros(vocab_size, dtype=torch.int64)
    for tokens in train.chunks():
        counts += torch.bincount(tokens, minlength=vocab_size)
    singles = counts.double() + 1
    singles /= singles.sum()
    return Baselines(
        math.log(vocab_size),
        -float(singles[batch.targets].log().mean()),
        _pairs(train, singles, batch) if vocab_size <= MOST_TOKENS else None,
    )


def _pairs(train: Corpus, singles: Tensor, batch: Batch) -> float:
    size = len(singles)
    counts = torch.zeros(size * size, dtype=torch.int64)
    for tokens in train.chunks():
        # The pair between two chunks is not counted: it is one in millions.
        pairs = tokens[:-1] * size + tokens[1:]
        counts.index_add_(0, pairs, torch.ones_like(pairs))
    table = counts.view(size, size).double()
    known = table[batch.tokens, batch.targets] + SMOOTHING * singles[batch.targets]
    return -float((known / (table.sum(1)[batch.tokens] + SMOOTHING)).log().mean())
