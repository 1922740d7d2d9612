"""Passes of a model over tokens: its logits, the surprise of each token, and the call of one attention layer.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=2, width=8)).eval()
>>> mine = TextModel("mine", model, ByteTokenizer())
>>> out = logits_of(mine, torch.tensor([[72, 105, 33]]))
>>> out.shape, losses(out[0], [72, 105, 33]).shape
(torch.Size([1, 3, 257]), torch.Size([2]))
>>> captured_call(mine, [72, 105, 33], layer=0).query.shape
torch.Size([1, 2, 3, 4])
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.layer_call import LayerCall
from rearview.errors import BadArgument, Unsupported
from rearview.intervention import masked
from rearview.masks import Mask
from rearview.models import BERT, GPT, T5
from rearview.observation.watching.observer import attention_layers, watching
from rearview.text_model import TextModel

# The largest number of logits that are computed for all positions; beyond it, those of the last position only.
MOST_LOGITS = 1 << 26
# The number of tokens that a T5 generates after it has read a text, so that its decoder has something to show.
T5_TOKENS = 24


def under(model: TextModel, mask: Mask | None, *, replace: bool = False) -> AbstractContextManager[None]:
    """The model with the masks of its layers edited, if there is a mask."""
    return nullcontext() if mask is None else masked(model.model, mask=mask, replace=replace)


@torch.no_grad()
def logits_of(model: TextModel, tokens: Tensor, *, last_only: bool = False) -> Tensor:
    """The logits [batch, time, vocab_size], or [batch, 1, vocab_size] of the last position."""
    inner = model.model
    if isinstance(inner, T5):
        raise Unsupported(f"{model.name} does not continue a text", ["it is a T5, which answers one"])
    if isinstance(inner, GPT):
        return inner(tokens, last_only=last_only)
    if isinstance(inner, BERT):
        return inner(tokens)[:, -1:] if last_only else inner(tokens)
    few: dict[str, Any] = {"logits_to_keep": 1} if last_only and "logits_to_keep" in _parameters(inner) else {}
    out = inner(input_ids=tokens, use_cache=False, **few).logits
    return out[:, -1:] if last_only else out


def run(model: TextModel, ids: list[int]) -> tuple[Tensor | None, list[int]]:
    """One pass for an observer: the logits [time, vocab_size] if they are few enough, and what a T5 wrote."""
    if isinstance(model.model, T5):
        from rearview.generation import generate

        written = generate(model.model, ids, max_new_tokens=T5_TOKENS, temperature=0, when_full="stop")
        return None, written.finish().tokens[0]
    return logits_of(model, model.batch(ids), last_only=not has_all_logits(model, len(ids)))[0], []


def has_all_logits(model: TextModel, length: int) -> bool:
    """Whether the logits of all positions of a text are computed, or those of one position only."""
    return length * model.tokenizer.vocab_size <= MOST_LOGITS


def predicts_next(model: TextModel) -> bool:
    """Whether the logits of a position are about the next token."""
    return not isinstance(model.model, (BERT, T5))


def losses(logits: Tensor, ids: list[int]) -> Tensor:
    """The surprise of each token after the first, in nats: -log of the probability that it was given, [time - 1]."""
    wanted = torch.tensor(ids[1:], device=logits.device)
    return torch.nn.functional.cross_entropy(logits[:-1].float(), wanted, reduction="none").cpu()


def most_likely(logits: Tensor, model: TextModel, *, count: int = 10) -> list[dict[str, Any]]:
    """The most likely tokens of one position [vocab_size], with their probabilities."""
    shares = logits.detach().double().cpu().softmax(-1)
    top = shares.topk(min(count, len(shares)))
    known = model.tokenizer.vocab_size
    labels = [model.labels([token])[0] if token < known else f"<{token}>" for token in top.indices.tolist()]
    return [
        {"token": token, "label": label, "probability": float(share)}
        for token, label, share in zip(top.indices.tolist(), labels, top.values.tolist(), strict=True)
    ]


class _Enough(Exception):
    """Raised inside a pass when what was wanted of it is there."""


def captured_call(
    model: TextModel, ids: list[int], *, layer: int, mask: Mask | None = None, replace: bool = False
) -> Call:
    """The call of one attention layer, with its values, while the model reads these tokens."""
    return captured_calls(model, ids, layer=layer, mask=mask, replace=replace)[0]


@torch.no_grad()
def captured_calls(
    model: TextModel, ids: list[int], *, layer: int, mask: Mask | None = None, replace: bool = False
) -> list[Call]:
    """The calls of one attention layer: one, or one per step in the decoder of a T5. Later layers are not run."""
    layers = attention_layers(model.model)
    if not 0 <= layer < len(layers):
        raise BadArgument("layer", expected=f"a number from 0 to {len(layers) - 1}", got=layer)
    chosen, found = layers[layer], list[Call]()

    def see(one: LayerCall) -> None:
        if one.module is chosen.module:
            found.append(one.call)
            if not isinstance(model.model, T5):
                raise _Enough

    with under(model, mask, replace=replace), watching([chosen], see), suppress(_Enough):
        run(model, ids)
    return found


def _parameters(inner: Any) -> set[str]:
    return set(inspect.signature(type(inner).forward).parameters)
