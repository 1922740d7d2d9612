"""T5 predicts: the encoder reads once, the decoder says one token after the other.

>>> from rearview.models import T5, T5Config
>>> model = T5(T5Config(vocab_size=65, layers=1, heads=2, width=8)).eval()
>>> cached, again = CachedT5(model, [[1, 2, 3], [4]], steps=4), RereadT5(model, [[1, 2, 3], [4]])
>>> bool((cached.logits([[0], [0]]) - again.logits([[0], [0]])).abs().max() < 1e-4)
True
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.generation.predict import as_batch
from rearview.masks import Mask, full, padding
from rearview.models import T5
from rearview.models.t5 import Memory


class RereadT5:
    """The decoder reads all that it has said at every step. What it remembers of the encoder stays."""

    def __init__(self, model: T5, prompts: Sequence[Sequence[int]]):
        self.model = model
        self._lengths = [len(prompt) for prompt in prompts]
        tokens = as_batch(prompts, model.tokens.weight.device)
        self._memory = model.encode(tokens, mask=self._real(tokens.shape[1]))

    def logits(self, sequences: Sequence[Sequence[int]]) -> Tensor:
        # All start together, so they are equally long.
        said = as_batch(sequences, self.model.tokens.weight.device)
        return self.model.decode(said, self._memory, last_only=True)[:, -1]

    def take(self, items: Sequence[int]) -> None:
        self._lengths = [self._lengths[item] for item in items]
        chosen = torch.tensor(list(items), device=self.model.tokens.weight.device)
        kept = [(key[chosen], value[chosen]) for key, value in self._memory.keys_values]
        mask = self._real(kept[0][0].shape[2])
        self._memory = Memory(kept, full() if mask is None else mask)

    def _real(self, longest: int) -> Mask | None:
        """Who of the encoder may be heard; None when nobody is padding."""
        return padding(self._lengths) if min(self._lengths) < longest else None


class CachedT5(RereadT5):
    """The decoder reads its newest token; the rest it remembers."""

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
