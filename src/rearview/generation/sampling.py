"""Sampling: choose a token from logits, greedily or at random, with temperature, top-k, top-p and a penalty.

    >>> import torch
    >>> logits = torch.tensor([1.0, 3.0, 2.0])
    >>> Sampling(temperature=0).start(seed=0).pick(logits, history=[])
    1
    >>> sampler = Sampling(top_k=2).start(seed=0)
    >>> sorted({sampler.pick(logits, history=[]) for _ in range(50)})
    [1, 2]

The options apply in the order of transformers: repetition penalty, temperature, top-k, top-p. A token is drawn by
inverting the cumulative distribution, in float64 on the CPU, at a number from the sequence's own generator. So the
token depends neither on the device of the logits nor on the other sequences of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.frame import whole_number


@dataclass(frozen=True)
class Sampling:
    """The options that decide how a token is chosen.

    Args:
        temperature: divides the logits. 0 chooses the most probable token.
        top_k: keep the k most probable tokens, and those that tie with the last of them.
        top_p: keep the most probable tokens whose probabilities add up to this number; at least one.
        repetition_penalty: a number above 1 makes tokens that have occurred less probable: positive logits are divided
            by it, negative ones multiplied (https://arxiv.org/abs/1909.05858, section 4.1).
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
            _check_number("top_p", self.top_p, "a number above 0 and at most 1", lambda n: 0 < n <= 1)
        if self.repetition_penalty is not None:
            _check_number("repetition_penalty", self.repetition_penalty, "a number above 0", lambda n: n > 0)

    @property
    def is_plainly_greedy(self) -> bool:
        """Whether the token with the largest logit is chosen, independent of the history."""
        return self.temperature == 0 and self.repetition_penalty is None

    def start(self, seed: int) -> Sampler:
        """A sampler for one sequence, with its own random numbers."""
        return Sampler(self, seed)

    def scores(self, logits: Tensor, history: Sequence[int]) -> Tensor:
        """The logits [vocab_size] in float64 after all options; -inf for a token that cannot be chosen.

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
        # Relative to the maximum, so that a low temperature cannot overflow.
        scores = (scores - scores.max()) / self.temperature
        if self.top_k is not None and self.top_k < len(scores):
            scores[scores < scores.topk(self.top_k).values[-1]] = -math.inf
        if self.top_p is not None and self.top_p < 1:
            falling, ids = scores.sort(descending=True, stable=True)
            share = falling.softmax(-1)
            # A token is dropped if those before it already reach top_p; the first one never is.
            scores[ids[share.cumsum(-1) - share >= self.top_p]] = -math.inf
        return scores

    def probabilities(self, logits: Tensor, history: Sequence[int]) -> Tensor:
        """The probability of each token after all options, float64 [vocab_size]; the temperature is above 0."""
        return self.scores(logits, history).softmax(-1)


class Sampler:
    """Chooses the tokens of one sequence. Its random numbers depend on `seed` alone."""

    def __init__(self, sampling: Sampling, seed: int):
        self.sampling = sampling
        self._generator = torch.Generator().manual_seed(seed)

    def pick(self, logits: Tensor, history: Sequence[int]) -> int:
        """The next token after `history`, chosen by its logits [vocab_size]."""
        scores = self.sampling.scores(logits, history)
        if self.sampling.temperature == 0:
            top, token = scores.max(-1)
            check_finite(float(top))
            return int(token)
        return self.draw(scores.softmax(-1))

    def draw(self, weights: Tensor) -> int:
        """A token with a probability proportional to its weight; `weights` are float64 [vocab_size] on the CPU."""
        reached = weights.cumsum(-1)
        whole = float(reached[-1])
        check_finite(whole)
        # With right=True a token of weight 0 is never chosen. Rounding may put the number past the last token.
        token = int(torch.searchsorted(reached, self.chance() * whole, right=True))
        return token if token < len(reached) else int(reached.argmax())

    def chance(self) -> float:
        """A random number from 0 up to, but not including, 1."""
        return float(torch.rand((), dtype=torch.float64, generator=self._generator))


def check_finite(number: float, argument: str = "model") -> None:
    """Raise if a logit is NaN or infinite."""
    if not math.isfinite(number):
        advice = "Its weights contain NaN or inf, or are so large that the logits overflow."
        raise BadArgument(argument, expected="finite logits", got=number, advice=advice)


def _check_number(name: str, value: object, expected: str, is_allowed: Callable[[float], bool]) -> None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and is_allowed(value):
        return
    raise BadArgument(name, expected=expected, got=repr(value))
