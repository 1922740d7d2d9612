"""The steps of a generation: an iterator that has one new token per sequence and step.

>>> from rearview.generation import generate
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8))
>>> for step in generate(model, [[1, 2, 3], [4]], max_new_tokens=2):
...     assert len(step.tokens) == 2
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import nn

from rearview.generation.figures import GenerationFigures
from rearview.generation.inference import inference
from rearview.generation.predictors import window_start
from rearview.generation.sampling import Sampler

Reason = Literal["end token", "stop string", "length", "context full", "stopped"]
"""Why a sequence ended."""
WhenFull = Literal["slide", "stop"]


@dataclass(frozen=True)
class GenerationStep:
    """One step of every sequence.

    Args:
        tokens: the new token of each sequence; None for a sequence that has ended before.
        reasons: why each sequence has ended; None while it continues.
        slid: whether the oldest tokens of the sequence slid out of the context before this token.

    >>> step = GenerationStep(tokens=(5, None), reasons=("length", "end token"), slid=(False, False))
    >>> step.tokens[0], step.reasons[0]
    (5, 'length')
    """

    tokens: tuple[int | None, ...]
    reasons: tuple[Reason | None, ...]
    slid: tuple[bool, ...]

    @property
    def token(self) -> int:
        """The new token of the only sequence.

        >>> GenerationStep((5,), (None,), (False,)).token
        5
        """
        (token,) = self.tokens
        assert token is not None, "a step has at least one new token"
        return token


@dataclass(frozen=True)
class Advance:
    """What one pass of the model gave a sequence: `drafted` tokens were proposed, and all but the last of `tokens` are
    proposals that were accepted."""

    tokens: list[int]
    drafted: int = 0


class TokenSource(Protocol):
    def advance(
        self, sequences: Sequence[Sequence[int]], *, rooms: Sequence[int], samplers: Sequence[Sampler]
    ) -> list[Advance]:
        """At least one new token for each sequence, and at most as many as it has room for, in one pass of the
        model."""
        ...

    def take(self, items: Sequence[int]) -> None:
        """Continue with these sequences only, in this order."""
        ...


class Generation(Iterator[GenerationStep]):
    """An iterator over steps. `tokens` and `reasons` hold the state of each sequence so far."""

    def __init__(
        self,
        model: nn.Module,
        source: TokenSource,
        started: Sequence[Sequence[int]],
        samplers: Sequence[Sampler],
        *,
        max_new_tokens: int,
        stop_ids: frozenset[int],
        context: int | None,
        when_full: WhenFull,
    ):
        self._model, self._source, self._samplers = model, source, samplers
        self._sequences = [list(start) for start in started]
        self._started = [len(start) for start in started]
        # Tokens that were generated and not yet returned: a pass may give several.
        self._ahead: list[list[int]] = [[] for _ in started]
        self._max_new, self._stop_ids, self._context, self._when_full = max_new_tokens, stop_ids, context, when_full
        self._read: list[int] = [0] * len(started)
        # The sequences that the source continues.
        self._growing = list(range(len(started)))
        self._figures = GenerationFigures()
        self.reasons: list[Reason | None] = [None] * len(started)
        if max_new_tokens == 0:
            self.reasons = ["length"] * len(started)

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each sequence so far."""
        return [sequence[start:] for sequence, start in zip(self._sequences, self._started, strict=True)]

    @property
    def figures(self) -> GenerationFigures:
        """Tokens, passes of the model, time, and what a draft contributed so far."""
        return self._figures

    def stop(self, sequence: int, reason: Reason = "stopped") -> None:
        """End one sequence here; the others continue."""
        if self.reasons[sequence] is None:
            self.reasons[sequence] = reason

    def finish(self) -> Generation:
        """Run all remaining steps, and return the generation itself."""
        for _ in self:
            pass
        return self

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> GenerationStep:
        active = [n for n, reason in enumerate(self.reasons) if reason is None]
        if not active:
            raise StopIteration
        began = time.perf_counter()
        slid = self._slide(active)
        if not all(self._ahead[n] for n in active):
            self._advance()
        new = {n: self._ahead[n].pop(0) for n in active}
        for n, token in new.items():
            self._sequences[n].append(token)
            self.reasons[n] = self._reason(len(self._sequences[n]), n, token)
        self._count(tokens=len(new), seconds=time.perf_counter() - began)
        every = range(len(self._sequences))
        return GenerationStep(tuple(map(new.get, every)), tuple(self.reasons), tuple(n in slid for n in every))

    def _advance(self) -> None:
        """One pass of the model for all sequences that have not ended.

        Some may already be ahead of the step: then they get further ahead, since the pass takes as long without them.
        """
        growing = [n for n in self._growing if self.reasons[n] is None and not self._ends(n)]
        # Only around a pass: between steps the modes of the caller apply.
        with inference(self._model):
            if len(growing) < len(self._growing):
                self._source.take([self._growing.index(n) for n in growing])
                self._growing = growing
            sequences = [self._sequences[n] + self._ahead[n] if self._ahead[n] else self._sequences[n] for n in growing]
            rooms = [self._room(n, len(sequence)) for n, sequence in zip(growing, sequences, strict=True)]
            samplers = [self._samplers[n] for n in growing]
            advances = self._source.advance(sequences, rooms=rooms, samplers=samplers)
        self._count(passes=1)
        for n, advance in zip(growing, advances, strict=True):
            new = self._until_the_end(n, advance.tokens)
            self._ahead[n] += new
            self._count(drafted=advance.drafted, accepted=min(len(new), len(advance.tokens) - 1))

    def _until_the_end(self, n: int, tokens: list[int]) -> list[int]:
        """The tokens up to the one that ends the sequence."""
        count = len(self._sequences[n]) + len(self._ahead[n])
        ends = (place for place, token in enumerate(tokens, 1) if self._reason(count + place, n, token) is not None)
        return tokens[: next(ends, len(tokens))]

    def _ends(self, n: int) -> bool:
        """Whether the tokens that were generated ahead end the sequence."""
        ahead = self._ahead[n]
        return bool(ahead) and self._reason(len(self._sequences[n]) + len(ahead), n, ahead[-1]) is not None

    def _room(self, n: int, count: int) -> int:
        """The largest number of tokens that a sequence of `count` tokens may still get."""
        room = self._started[n] + self._max_new - count
        if self._when_full == "slide" or self._context is None:
            return room
        # A model predicts one token more than it has positions.
        return min(room, self._context + 1 - count)

    def _reason(self, count: int, n: int, token: int) -> Reason | None:
        """Why sequence n ends at `count` tokens, of which `token` is the last."""
        if token in self._stop_ids:
            return "end token"
        if count - self._started[n] >= self._max_new:
            return "length"
        if self._when_full == "stop" and self._context is not None and count > self._context:
            return "context full"
        return None

    def _slide(self, active: list[int]) -> set[int]:
        """The sequences that lose their oldest tokens at this step."""
        if self._context is None:
            return set()
        starts = {n: window_start(len(self._sequences[n]), context=self._context) for n in active}
        slid = {n for n, start in starts.items() if start != self._read[n]}
        for n in slid:
            self._read[n] = starts[n]
        return slid

    def _count(self, **more: float) -> None:
        now = self._figures
        self._figures = replace(now, **{name: getattr(now, name) + number for name, number in more.items()})
