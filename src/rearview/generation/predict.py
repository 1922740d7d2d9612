"""Who predicts: the logits of the next token for several sequences, with a cache or by reading everything again.

    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).eval()
    >>> texts = [[1, 2, 3], [4]]
    >>> cached, again = CachedGPT(model, batch=2, max_len=8), RereadGPT(model)
    >>> bool((cached.logits(texts) - again.logits(texts)).abs().max() < 1e-5)
    True

A predictor is given all sequences at every step; what it remembers of them is its own affair. `take` tells it that
only some of them go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rearview.generation.context import window_start
from rearview.models import GPT


class Predictor(Protocol):
    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """The logits of the token that follows each, [sequences, vocab_size]."""
        ...

    def take(self, items: Sequence[int]) -> None:
        """From now on only these of the sequences, in this order."""
        ...


class RereadGPT:
    """Each sequence by itself, read whole at every step: slow, and what the cache is measured by."""

    def __init__(self, model: GPT):
        self.model = model

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        context = self.model.config.context
        rows = [sequence[window_start(len(sequence), context=context) :] for sequence in sequences]
        return torch.cat([self.model(self._batch([row]), last_only=True)[:, -1] for row in rows])

    def take(self, items: Sequence[int]) -> None:
        pass

    def _batch(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return as_batch(rows, self.model.tokens.weight.device)


class CachedGPT:
    """All sequences in one batch over one cache, which holds everything but the newest token of each."""

    def __init__(self, model: GPT, *, batch: int, max_len: int):
        self.model = model
        self._cache = model.new_cache(batch, max_len)
        # Where the tokens start that the cache holds of each sequence; nothing was read so far.
        self._starts: list[int | None] = [None] * batch

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        starts = [window_start(len(sequence), context=self.model.config.context) for sequence in sequences]
        unread = [n for n, start in enumerate(starts) if start != self._starts[n]]
        if unread:
            self._read(unread, [sequences[n][starts[n] : -1] for n in unread])
            self._starts[:] = starts
        newest = as_batch([sequence[-1:] for sequence in sequences], self.model.tokens.weight.device)
        return self.model(newest, cache=self._cache, last_only=True)[:, -1]

    def take(self, items: Sequence[int]) -> None:
        for layer in self._cache:
            layer.take(items)
        self._starts = [self._starts[item] for item in items]

    def _read(self, items: list[int], rows: Sequence[Sequence[int]]) -> None:
        """Let the cache hold `rows`, and nothing else, for these items."""
        lengths = [len(row) for row in rows]
        everyone = len(items) == len(self._starts)
        cache = self._cache if everyone else self.model.new_cache(len(items), max(1, *lengths))
        for layer in cache:
            layer.reset()
        if any(lengths):
            # Padding stands behind each row, where a mask that looks back does not hear it; then it is forgotten.
            self.model(as_batch(rows, self.model.tokens.weight.device), cache=cache, last_only=True)
            for layer in cache:
                layer.keep(lengths)
        if not everyone:
            for layer, new in zip(self._cache, cache, strict=True):
                layer.put(items, new)


def as_batch(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """[rows, longest], padded on the right.

    >>> as_batch([[1, 2], [3]], torch.device("cpu")).tolist()
    [[1, 2], [3, 0]]
    """
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
