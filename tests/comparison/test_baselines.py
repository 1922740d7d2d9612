"""Baselines against counts by hand."""

import math

import pytest
import torch

from rearview.comparison import baselines as module
from rearview.comparison.baselines import Baselines, baselines
from rearview.text import CharTokenizer
from rearview.training import Corpus
from rearview.training.batches import Batch

# Tokens: end a b a a end, with a = 0, b = 1, end = 2.
CORPUS = Corpus.of(["abaa"], CharTokenizer("ab"))
BATCH = Batch(torch.tensor([[0, 0, 1]]), torch.tensor([[1, 0, 1]]))


def test_baselines_equal_counts_by_hand():
    found = baselines(CORPUS, BATCH, vocab_size=3)
    singles = {0: 4 / 9, 1: 2 / 9, 2: 3 / 9}
    # a is followed by b once, by a once, by the end once; b by a once.
    pairs = [(1 + singles[1]) / 4, (1 + singles[0]) / 4, (0 + singles[1]) / 2]
    assert found.even == math.log(3)
    assert found.singles == pytest.approx(-sum(math.log(singles[token]) for token in (1, 0, 1)) / 3)
    assert found.pairs == pytest.approx(-sum(map(math.log, pairs)) / 3)


def test_a_table_that_would_be_huge_is_not_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_TOKENS", 2)
    assert baselines(CORPUS, BATCH, vocab_size=3).pairs is None


def test_they_can_be_scaled():
    assert Baselines(1.0, 2.0, 3.0).scaled(2) == Baselines(2.0, 4.0, 6.0)
    assert Baselines(1.0, 2.0, None).scaled(2) == Baselines(2.0, 4.0, None)
