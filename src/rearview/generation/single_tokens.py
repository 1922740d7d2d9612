"""Plain generation: each pass of the model gives every sequence one token.

>>> from rearview.generation.predictors import UncachedGPT
>>> from rearview.generation.sampling import Sampling
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8)).eval()
>>> source, sampler = SingleTokens(UncachedGPT(model), Sampling(temperature=0)), Sampling(temperature=0).start(seed=0)
>>> (advance,) = source.advance([[1, 2, 3]], rooms=[9], samplers=[sampler])
>>> advance.tokens == [int(model(torch.tensor([[1, 2, 3]]))[0, -1].argmax())]
True
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rearview.generation.predictors import Predictor
from rearview.generation.sampling import Sampler, Sampling, check_finite
from rearview.generation.steps import Advance


class SingleTokens:
    """A predictor computes the logits of all sequences, and the sampler of each sequence picks its token."""

    def __init__(self, predictor: Predictor, sampling: Sampling):
        self._predictor, self._sampling = predictor, sampling

    def advance(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[Advance]:
        assert min(rooms) > 0, "a sequence without room has ended"
        logits = self._predictor.logits(sequences)
        if self._sampling.is_plainly_greedy:
            top, tokens = logits.max(-1)
            for number in top.tolist():
                check_finite(number)
            return [Advance([token]) for token in tokens.tolist()]
        rows = logits.to("cpu", torch.float64)
        picked = zip(samplers, rows, sequences, strict=True)
        return [Advance([sampler.pick(row, sequence)]) for sampler, row, sequence in picked]

    def take(self, items: Sequence[int]) -> None:
        self._predictor.take(items)
