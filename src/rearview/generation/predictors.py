"""Predictors: the logits of the next token of several sequences, with a cache or without.

    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).eval()
    >>> texts = [[1, 2, 3], [4]]
    >>> cached, uncached = CachedGPT(model, batch=2, max_len=8), UncachedGPT(model)
    >>> bool((cached.logits(texts) - uncached.logits(texts)).abs().max() < 1e-5)
    True

A predictor gets all sequences at every step and decides itself what to keep of them. A sequence that exceeds the
context of a GPT loses its oldest tokens by a rule that depends on its length alone (`window_start`), so the rule is the
same with a cache and without, and for every batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from rearview.masks import Mask, full, padding
from rearview.models import GPT, T5
from rearview.models.t5 import EncoderMemory


class Predictor(Protocol):
    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        """The logits of the token that follows each sequence, [sequences, vocab_size]."""
        ...

    def take(self, items: Sequence[int]) -> None:
        """Continue with these sequences only, in this order."""
        ...


class UncachedGPT:
    """Reads each whole sequence again at every step. It is slow, and the standard that the cache is tested against."""

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
    """All sequences in one batch, with one cache that holds all but the newest token of each."""

    def __init__(self, model: GPT, *, batch: int, max_len: int):
        self.model = model
        self._cache = model.new_cache(batch, max_len)
        # The index of the first token of each sequence that the cache holds; None before the prompt is read.
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
        """Replace what the cache holds for these items by `rows`.

        Equal rows, such as several samples of one prompt, are read once.
        """
        given, rows = [tuple(row) for row in rows], list(dict.fromkeys(map(tuple, rows)))
        lengths = [len(row) for row in rows]
        is_whole_batch = len(rows) == len(self._starts)
        cache = self._cache if is_whole_batch else self.model.new_cache(len(rows), max(1, *lengths))
        for layer in cache:
            layer.reset()
        if any(lengths):
            # Rows are padded on the right, where a mask that looks back does not hear the padding; the cache then
            # drops it.
            self.model(as_batch(rows, self.model.tokens.weight.device), cache=cache, last_only=True)
            for layer in cache:
                layer.keep(lengths)
        if not is_whole_batch:
            for layer, new in zip(self._cache, cache, strict=True):
                new.take([rows.index(row) for row in given])
                layer.put(items, new)


class UncachedT5:
    """The encoder reads the prompts once; the decoder reads its whole output again at every step.

    >>> from rearview.models import T5, T5Config
    >>> model = T5(T5Config(vocab_size=65, layers=1, heads=2, width=8)).eval()
    >>> cached, uncached = CachedT5(model, [[1, 2, 3], [4]], steps=4), UncachedT5(model, [[1, 2, 3], [4]])
    >>> bool((cached.logits([[0], [0]]) - uncached.logits([[0], [0]])).abs().max() < 1e-4)
    True
    """

    def __init__(self, model: T5, prompts: Sequence[Sequence[int]]):
        self.model = model
        self._lengths = [len(prompt) for prompt in prompts]
        tokens = as_batch(prompts, model.tokens.weight.device)
        self._memory = model.encode(tokens, mask=self._padding(tokens.shape[1]))

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        # All decoder sequences start at the same step, so they have the same length.
        tokens = as_batch(sequences, self.model.tokens.weight.device)
        return self.model.decode(tokens, self._memory, last_only=True)[:, -1]

    def take(self, items: Sequence[int]) -> None:
        self._lengths = [self._lengths[item] for item in items]
        chosen = torch.tensor(list(items), device=self.model.tokens.weight.device)
        kept = [(key[chosen], value[chosen]) for key, value in self._memory.keys_values]
        mask = self._padding(kept[0][0].shape[2])
        self._memory = EncoderMemory(kept, full() if mask is None else mask)

    def _padding(self, longest: int) -> Mask | None:
        """The mask that hides the padding of the prompts, or None if there is no padding."""
        return padding(self._lengths) if min(self._lengths) < longest else None


class CachedT5(UncachedT5):
    """The decoder reads its newest token only; a cache holds the keys and values of the rest."""

    def __init__(self, model: T5, prompts: Sequence[Sequence[int]], *, steps: int):
        super().__init__(model, prompts)
        self._cache = model.new_cache(len(prompts), max(1, steps))

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        newest = as_batch([sequence[-1:] for sequence in sequences], self.model.tokens.weight.device)
        return self.model.decode(newest, self._memory, cache=self._cache, last_only=True)[:, -1]

    def take(self, items: Sequence[int]) -> None:
        super().take(items)
        for layer in self._cache:
            layer.take(items)


def window_start(count: int, *, context: int) -> int:
    """The index of the first of `count` tokens that a model with this context reads.

    When one more token would not fit, the oldest half of the context is dropped, and the model reads the rest again
    from position 0. To drop a single token would cost such a reading at every step, since every position changes.

    >>> [window_start(count, context=4) for count in range(1, 10)]
    [0, 0, 0, 0, 2, 2, 4, 4, 6]
    """
    hop = max(1, context // 2)
    return max(0, -(-(count - context) // hop)) * hop


def as_batch(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Rows as a tensor [rows, longest], padded with 0 on the right.

    >>> as_batch([[1, 2], [3]], torch.device("cpu")).tolist()
    [[1, 2], [3, 0]]
    """
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], device=device)
