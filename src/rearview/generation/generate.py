"""generate(): tokens one at a time, as a Python iterator.

>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8))
>>> tokens = [step.token for step in generate(model, [1, 2, 3], max_new_tokens=20, seed=1)]
>>> len(tokens), generate(model, [1, 2, 3], max_new_tokens=20, seed=1).finish().tokens[0] == tokens
(20, True)

Several prompts of unequal length are one batch, and each gets the tokens that it would get alone:

>>> generate(model, [[7, 8], [1, 2, 3]], max_new_tokens=20, seed=1).finish().tokens[1] == tokens
True
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument, Unsupported
from rearview.generation.context import WhenFull, check_when_full, window_start
from rearview.generation.encoder_decoder import CachedT5, RereadT5
from rearview.generation.inference import inference
from rearview.generation.predict import CachedGPT, Predictor, RereadGPT
from rearview.generation.prompts import as_prompts, as_seeds
from rearview.generation.sampling import Sampling, check_finite
from rearview.generation.step import Reason, Step
from rearview.masks.frame import whole_number
from rearview.models import GPT, T5


def generate(
    model: GPT | T5,
    prompt: Sequence[int] | Sequence[Sequence[int]] | Tensor,
    *,
    max_new_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    repetition_penalty: float | None = None,
    stop_ids: Iterable[int] | None = None,
    seed: int | Sequence[int] = 0,
    use_cache: bool | None = None,
    when_full: WhenFull = "slide",
) -> Generation:
    """The tokens that follow a prompt, one step at a time.

    Args:
        prompt: ids, or several prompts; they may differ in length. To a T5 they are what its encoder reads.
        max_new_tokens: of each sequence, at most.
        temperature, top_k, top_p, repetition_penalty: see `Sampling`; temperature 0 is greedy.
        stop_ids: tokens that end a sequence, the end of a document for example. A T5's own unless given.
        seed: each sequence draws from a generator of its own that starts here; or one seed for each.
        use_cache: remember keys and values? Wherever the masks only look back, unless given. It changes the speed.
        when_full: a GPT's context that is full lets its oldest half "slide" out, or "stop"s the sequence.

    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8))
    >>> generation = generate(model, [1, 2, 3], max_new_tokens=20, temperature=0, when_full="stop").finish()
    >>> len(generation.tokens[0]), generation.reasons[0]
    (6, 'context full')
    """
    if not isinstance(model, (GPT, T5)):
        advice = "BERT hears both sides, and fills in what is masked: use fill()."
        raise BadArgument("model", expected="a GPT or a T5", came=type(model).__name__, advice=advice)
    max_new_tokens = whole_number(max_new_tokens, "max_new_tokens", at_least=0)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    check_when_full(when_full)
    prompts = as_prompts(prompt, vocab_size=model.config.vocab_size)
    seeds = as_seeds(seed, len(prompts))
    if isinstance(model, T5):
        own_end = () if model.config.end_id is None else (model.config.end_id,)
        stops, context = frozenset(own_end if stop_ids is None else stop_ids), None
        started = [[model.config.start_id] for _ in prompts]
        with inference(model):
            reread = use_cache is False
            predictor = RereadT5(model, prompts) if reread else CachedT5(model, prompts, steps=max_new_tokens)
    else:
        stops, context, started = frozenset(stop_ids or ()), model.config.context, prompts
        longest = max(map(len, prompts))
        if when_full == "stop" and longest > context:
            advice = 'Give it the last tokens only, or let the first slide out with when_full="slide".'
            expected = f"at most {context} tokens, the model's context"
            raise BadArgument("prompt", expected=expected, came=longest, advice=advice)
        with inference(model):
            predictor = _gpt_predictor(model, use_cache, prompts, steps=max_new_tokens)
    return Generation(
        model,
        predictor,
        started,
        sampling,
        seeds=seeds,
        max_new_tokens=max_new_tokens,
        stop_ids=stops,
        context=context,
        when_full=when_full,
    )


class Generation(Iterator[Step]):
    """An iterator over steps; what it has so far is in `tokens` and `reasons`, a list entry for each sequence."""

    def __init__(
        self,
        model: nn.Module,
        predictor: Predictor,
        started: Sequence[Sequence[int]],
        sampling: Sampling,
        *,
        seeds: Sequence[int],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        context: int | None,
        when_full: WhenFull,
    ):
        self._model, self._predictor, self._sampling = model, predictor, sampling
        self._samplers = [sampling.start(seed) for seed in seeds]
        self._sequences = [list(start) for start in started]
        self._started = [len(start) for start in started]
        self._max_new, self._stop_ids, self._context, self._when_full = max_new_tokens, stop_ids, context, when_full
        self._read: list[int] = [0] * len(started)
        self._going = list(range(len(started)))
        self.reasons: list[Reason | None] = [None] * len(started)
        if max_new_tokens == 0:
            self.reasons = ["length"] * len(started)

    @property
    def tokens(self) -> list[list[int]]:
        """The new tokens of each sequence so far."""
        return [sequence[start:] for sequence, start in zip(self._sequences, self._started, strict=True)]

    def stop(self, sequence: int, reason: Reason = "stopped") -> None:
        """Let one sequence end here, whatever is missing; the others go on."""
        if self.reasons[sequence] is None:
            self.reasons[sequence] = reason

    def finish(self) -> Generation:
        """Run to the end, and return itself."""
        for _ in self:
            pass
        return self

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Step:
        self._leave_the_finished()
        if not self._going:
            raise StopIteration
        slid = self._slide()
        # Around one step, not around the whole: between steps the caller's modes are the caller's.
        with inference(self._model):
            logits = self._predictor.logits([self._sequences[n] for n in self._going])
            picked = self._pick(logits)
        new = dict(zip(self._going, picked, strict=True))
        for n, token in new.items():
            self._sequences[n].append(token)
            self.reasons[n] = self._reason(n, token)
        everyone = range(len(self._sequences))
        return Step(tuple(map(new.get, everyone)), tuple(self.reasons), tuple(n in slid for n in everyone))

    def _pick(self, logits: Tensor) -> list[int]:
        if self._sampling.is_plainly_greedy:
            top, tokens = logits.max(-1)
            for number in top.tolist():
                check_finite(number)
            return tokens.tolist()
        rows = logits.to("cpu", torch.float64)
        return [self._samplers[n].pick(row, self._sequences[n]) for n, row in zip(self._going, rows, strict=True)]

    def _reason(self, n: int, token: int) -> Reason | None:
        count = len(self._sequences[n])
        if token in self._stop_ids:
            return "end token"
        if count - self._started[n] >= self._max_new:
            return "length"
        if self._when_full == "stop" and self._context is not None and count > self._context:
            return "context full"
        return None

    def _slide(self) -> set[int]:
        """The sequences that lose their oldest tokens now."""
        if self._context is None:
            return set()
        starts = {n: window_start(len(self._sequences[n]), context=self._context) for n in self._going}
        slid = {n for n, start in starts.items() if start != self._read[n]}
        for n in slid:
            self._read[n] = starts[n]
        return slid

    def _leave_the_finished(self) -> None:
        staying = [place for place, n in enumerate(self._going) if self.reasons[n] is None]
        if staying and len(staying) < len(self._going):
            with inference(self._model):
                self._predictor.take(staying)
        self._going = [self._going[place] for place in staying]


def _gpt_predictor(model: GPT, use_cache: bool | None, prompts: list[list[int]], *, steps: int) -> Predictor:
    ahead = None if use_cache is False else _mask_that_looks_ahead(model)
    if use_cache and ahead is not None:
        raise Unsupported(
            "generation with a cache",
            [f"the mask {ahead} looks ahead, so what a position heard changes with every token that follows"],
            advice="Leave use_cache out, or say use_cache=False: everything is then read again at every step.",
        )
    if use_cache is False or ahead is not None:
        return RereadGPT(model)
    max_len = min(model.config.context, max(map(len, prompts)) + steps)
    return CachedGPT(model, batch=len(prompts), max_len=max_len)


def _mask_that_looks_ahead(model: GPT) -> str | None:
    masks = {id(mask): mask for mask in model.config.masks}.values()
    kinds = ((mask, {warning.kind for warning in mask.warnings(model.config.context)}) for mask in masks)
    return next((repr(mask) for mask, kind in kinds if "visible future" in kind), None)
