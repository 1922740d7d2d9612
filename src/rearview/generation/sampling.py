"""From logits to a token: greedy, or drawn, with the usual ways of narrowing the choice.

    >>> import torch
    >>> logits = torch.tensor([1.0, 3.0, 2.0])
    >>> Sampling(temperature=0).start(seed=0).pick(logits, history=[])
    1
    >>> sampler = Sampling(top_k=2).start(seed=0)
    >>> sorted({sampler.pick(logits, history=[]) for _ in range(50)})
    [1, 2]

The order is that of transformers: repetition penalty, temperature, top-k, top-p. A token is drawn by walking along the
ids until the probabilities exceed a number from the sequence's own generator, in float64 on the CPU: the same number
gives the same token wherever the logits were computed, and whoever else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen.

    Args:
        temperature: divides the logits; 0 takes the most probable token.
        top_k: only the k most probable tokens, and those as probable as the last of them.
        top_p: only the most probable tokens that together reach this share; always at least one.
        repetition_penalty: above 1 makes tokens that have occurred less probable: positive logits are divided by it,
            negative ones multiplied (https://arxiv.org/abs/1909.05858, section 4.1).
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, "a number of at least 0", lambda n: n >= 0)
        if self.top_k is not None:
            whole_number(self.top_k, "top_k", at_least=1)
        if self.top_p is not None:
            _check_number("top_p", self.top_p, "a number above 0, at most 1", lambda n: 0 < n <= 1)
        if self.repetition_penalty is not None:
            _check_number("repetition_penalty", self.repetition_penalty, "a number above 0", lambda n: n > 0)

    @property
    def is_plainly_greedy(self) -> bool:
        """Is the token the largest logit, whatever came before?"""
        return self.temperature == 0 and self.repetition_penalty is None

    def start(self, seed: int) -> Sampler:
        """A sampler for one sequence."""
        return Sampler(self, seed)

    def scores(self, logits: Tensor, history: Sequence[int]) -> Tensor:
        """Logits [vocab_size] -> float64, at this temperature, -inf where a token is ruled out.

        >>> Sampling(top_p=0.7).scores(torch.tensor([0.6, 0.25, 0.15]).log(), history=[]).exp().tolist()[2]
        0.0
        """
        scores = logits.to("cpu", torch.float64, copy=True)
        if self.repetition_penalty is not None and history:
            seen = torch.tensor(history)
            score, penalty = scores[seen], self.repetition_penalty
            scores[seen] = torch.where(score < 0, score * penalty, score / penalty)
        if self.temperature == 0:
            return scores
        # From the top down, so that no temperature, however low, makes a number overflow.
        scores = (scores - scores.max()) / self.temperature
        if self.top_k is not None and self.top_k < len(scores):
            scores[scores < scores.topk(self.top_k).values[-1]] = -math.inf
        if self.top_p is not None and self.top_p < 1:
            falling, ids = scores.sort(descending=True, stable=True)
            share = falling.softmax(-1)
            # A token goes when those before it suffice; before the first there are none.
            scores[ids[share.cumsum(-1) - share >= self.top_p]] = -math.inf
        return scores


class Sampler:
    """Chooses the tokens of one sequence; `seed` alone decides its chances."""

    def __init__(self, sampling: Sampling, seed: int):
        self.sampling = sampling
        self._generator = torch.Generator().manual_seed(seed)

    def pick(self, logits: Tensor, history: Sequence[int]) -> int:
        """The next token after `history`, given its logits [vocab_size]."""
        scores = self.sampling.scores(logits, history)
        if self.sampling.temperature == 0:
            top, token = scores.max(-1)
            check_finite(float(top))
            return int(token)
        reached = scores.softmax(-1).cumsum(-1)
        whole = float(reached[-1])
        check_finite(whole)
        chance = float(torch.rand((), dtype=torch.float64, generator=self._generator)) * whole
        # Strictly beyond: a token of probability 0 is never reached. Rounding may put the chance at the very end.
        token = int(torch.searchsorted(reached, chance, right=True))
        return token if token < len(reached) else int(reached.argmax())


def check_finite(number: float) -> None:
    """Raise when logits are not numbers."""
    if not math.isfinite(number):
        advice = "Its weights hold NaN or inf, or are so large that the logits overflow."
        raise BadArgument("model", expected="finite logits", came=number, advice=advice)


def check_seed(seed: Any) -> int:
    """A whole number that a generator takes."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise BadArgument("seed", expected="an integer from 0 to 2**63 - 1", came=repr(seed))
    return seed


def _check_number(name: str, value: Any, expected: str, fits: Any) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not fits(value):
        raise BadArgument(name, expected=expected, came=repr(value))
