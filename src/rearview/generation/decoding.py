"""generate(): an iterator that generates one token per sequence and step.

>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8))
>>> tokens = [step.token for step in generate(model, [1, 2, 3], max_new_tokens=20, seed=1)]
>>> len(tokens), generate(model, [1, 2, 3], max_new_tokens=20, seed=1).finish().tokens[0] == tokens
(20, True)

Prompts of different lengths form one batch. Each gets the tokens that it would get alone:

>>> generate(model, [[7, 8], [1, 2, 3]], max_new_tokens=20, seed=1).finish().tokens[1] == tokens
True
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict

from torch import Tensor

from rearview.attention.sequence_shard import refuse_shard
from rearview.errors import BadArgument, Unsupported
from rearview.generation.captured_gpt import CapturedGPT, can_capture
from rearview.generation.combinations import check_draft, mask_that_looks_ahead
from rearview.generation.drafts import Draft
from rearview.generation.inference import inference
from rearview.generation.predictors import CachedGPT, CachedT5, Predictor, UncachedGPT, UncachedT5
from rearview.generation.prompts import as_prompts, as_seeds
from rearview.generation.sampling import Sampling
from rearview.generation.single_tokens import SingleTokens
from rearview.generation.speculation import Speculation
from rearview.generation.steps import Generation, TokenSource, WhenFull
from rearview.masks.frame import whole_number
from rearview.models import GPT, T5


class GenerateOptions(TypedDict, total=False):
    """The options of `generate` that functions around it pass on."""

    temperature: float
    top_k: int | None
    top_p: float | None
    repetition_penalty: float | None
    use_cache: bool | None
    cuda_graph: bool | None
    when_full: WhenFull
    draft: Draft | None


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
    cuda_graph: bool | None = None,
    when_full: WhenFull = "slide",
    draft: Draft | None = None,
) -> Generation:
    """Generate the tokens that follow a prompt, one step at a time.

    Args:
        prompt: token ids, or several lists of them, which may differ in length. The encoder of a T5 reads them.
        max_new_tokens: the largest number of new tokens per sequence.
        temperature, top_k, top_p, repetition_penalty: see `Sampling`. Temperature 0 is greedy.
        stop_ids: tokens that end a sequence, such as the end of a document. By default the end token of a T5.
        seed: the seed of each sequence's own random generator, or a list with one seed per sequence.
        use_cache: whether to cache keys and values; by default wherever the masks only look back. It does not change
            the result, only the time.
        cuda_graph: whether the steps of a GPT with a cache are captured in a CUDA graph; by default wherever they
            can be, on a GPU and without a draft. It does not change the result, only the time.
        when_full: what happens when the context of a GPT is full: its oldest half "slide"s out, or the sequence
            "stop"s.
        draft: what proposes tokens that the model checks in one pass, a `ModelDraft` or a `LookupDraft`. Greedy tokens
            are the same as without it. Sampled tokens have the same distribution; with a tree or a lookup they are the
            same for the same seed.

    >>> from rearview.models import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=1, heads=2, width=8))
    >>> generation = generate(model, [1, 2, 3], max_new_tokens=20, temperature=0, when_full="stop").finish()
    >>> len(generation.tokens[0]), generation.reasons[0]
    (6, 'context full')
    """
    if not isinstance(model, (GPT, T5)):
        advice = "BERT predicts masked tokens: call fill()."
        raise BadArgument("model", expected="a GPT or a T5", got=type(model).__name__, advice=advice)
    refuse_shard("generation", advice="Generate outside of layout.on(...), with the whole sequence on one device.")
    max_new_tokens = whole_number(max_new_tokens, "max_new_tokens", at_least=0)
    sampling = Sampling(temperature, top_k, top_p, repetition_penalty)
    if when_full not in ("slide", "stop"):
        raise BadArgument("when_full", expected='"slide" or "stop"', got=repr(when_full))
    prompts = as_prompts(prompt, vocab_size=model.config.vocab_size)
    seeds = as_seeds(seed, len(prompts))
    if draft is not None:
        check_draft(model, draft, prompts, max_new_tokens=max_new_tokens, use_cache=use_cache, when_full=when_full)
    if cuda_graph and (isinstance(model, T5) or draft is not None or use_cache is False or not can_capture(model)):
        raise Unsupported(
            "generation with a CUDA graph",
            ["the steps of a GPT with a cache and without a draft are captured, on an NVIDIA GPU, with masks that have "
             "ranges, while nothing watches its layers"],
            advice="Omit cuda_graph: then a graph is used wherever it can be.",
        )  # fmt: skip
    source: TokenSource
    if isinstance(model, T5):
        own_end = () if model.config.end_id is None else (model.config.end_id,)
        stops, context = frozenset(own_end if stop_ids is None else stop_ids), None
        started = [[model.config.start_id] for _ in prompts]
        with inference(model):
            if use_cache is False:
                predictor = UncachedT5(model, prompts)
            else:
                predictor = CachedT5(model, prompts, steps=max_new_tokens)
        source = SingleTokens(predictor, sampling)
    else:
        stops, context, started = frozenset(stop_ids or ()), model.config.context, prompts
        longest = max(map(len, prompts))
        if when_full == "stop" and longest > context:
            advice = 'Pass only the last tokens, or drop the oldest with when_full="slide".'
            expected = f"at most {context} tokens, the model's context"
            raise BadArgument("prompt", expected=expected, got=longest, advice=advice)
        max_len = min(context, longest + max_new_tokens)
        with inference(model):
            if draft is None:
                predictor = _gpt_predictor(model, use_cache, cuda_graph, len(prompts), max_len=max_len)
                source = SingleTokens(predictor, sampling)
            else:
                source = Speculation(model, draft, prompts, max_len=max_len, sampling=sampling)
    return Generation(
        model,
        source,
        started,
        [sampling.start(seed) for seed in seeds],
        max_new_tokens=max_new_tokens,
        stop_ids=stops,
        context=context,
        when_full=when_full,
    )


def _gpt_predictor(
    model: GPT, use_cache: bool | None, cuda_graph: bool | None, batch: int, *, max_len: int
) -> Predictor:
    ahead = None if use_cache is False else mask_that_looks_ahead(model)
    if use_cache and ahead is not None:
        raise Unsupported(
            "generation with a cache",
            [f"the mask {ahead} looks ahead, so every new token changes earlier keys and values"],
            advice="Omit use_cache or pass use_cache=False, so that the model reads the whole sequence at every step.",
        )
    if use_cache is False or ahead is not None:
        return UncachedGPT(model)
    if cuda_graph is not False and can_capture(model):
        return CapturedGPT(model, batch=batch, max_len=max_len)
    return CachedGPT(model, batch=batch, max_len=max_len)
