"""Which models, masks and options can be combined with a cache and with a draft.

>>> from rearview import causal, full
>>> from rearview.models import GPTConfig
>>> mask_that_looks_ahead(GPT(GPTConfig(vocab_size=65, context=8, layers=2, mask=(causal(), full()))))
'full()'
"""

from __future__ import annotations

from collections.abc import Sequence

from rearview.errors import BadArgument, Unsupported
from rearview.generation.drafts import Draft, LookupDraft, ModelDraft
from rearview.generation.steps import WhenFull
from rearview.models import GPT, T5


def mask_that_looks_ahead(model: GPT) -> str | None:
    """The first mask of the model by which a position hears later ones, as text."""
    masks = {id(mask): mask for mask in model.config.masks}.values()
    kinds = ((mask, {warning.kind for warning in mask.warnings(model.config.context)}) for mask in masks)
    return next((repr(mask) for mask, kind in kinds if "visible future" in kind), None)


def check_draft(
    model: GPT | T5,
    draft: Draft,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    use_cache: bool | None,
    when_full: WhenFull,
) -> None:
    """Raise if the model cannot be combined with the draft."""
    if not isinstance(draft, (ModelDraft, LookupDraft)):
        expected = "a ModelDraft or a LookupDraft"
        advice = "To draft with a model, pass draft=ModelDraft(model)." if isinstance(draft, GPT) else ""
        raise BadArgument("draft", expected=expected, got=type(draft).__name__, advice=advice)
    if not isinstance(model, GPT):
        reason = "the decoder of a T5 has relative positions, which count the slots of the cache and not the tree"
        raise Unsupported("speculative decoding", [reason], advice="Generate without a draft.")
    # A model reads all tokens but the last one.
    longest = max(map(len, prompts)) + max_new_tokens
    read = max(0, min(longest - 1, model.config.context) if when_full == "stop" else longest - 1)
    reasons, advice = [], "Generate without a draft."
    if use_cache is False:
        reasons.append("the model checks the draft in one pass over the cache, and use_cache=False forbids the cache")
    for name, each in (("model", model), ("draft", draft.model if isinstance(draft, ModelDraft) else None)):
        ahead = None if each is None else mask_that_looks_ahead(each)
        if ahead is not None:
            reasons.append(f"the mask {ahead} of the {name} looks ahead, so every new token changes earlier keys")
    if read > model.config.context:
        reasons.append(
            f"the context of {model.config.context} tokens would slide before {longest} tokens are reached, "
            "and a draft cannot follow"
        )
        if len(reasons) == 1:
            advice = 'Pass when_full="stop", or generate fewer tokens.'
    if reasons:
        raise Unsupported("speculative decoding", reasons, advice=advice)
    if isinstance(draft, ModelDraft):
        _check_draft_model(model, draft.model, read)


def _check_draft_model(model: GPT, draft: GPT, read: int) -> None:
    ours, theirs = model.config.vocab_size, draft.config.vocab_size
    if ours != theirs:
        expected = f"a model with the same vocabulary, of {ours} tokens"
        raise BadArgument("draft", expected=expected, got=f"a model of {theirs} tokens")
    if draft.config.context < read:
        expected = f"a model with a context of at least {read} tokens, as many as are read"
        raise BadArgument("draft", expected=expected, got=f"a context of {draft.config.context}")
