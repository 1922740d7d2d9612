"""Write: generation token by token, with what the new token attends to and what else it might have been."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rearview.attention.functional import weights_of
from rearview.attention.layer_call import LayerCall
from rearview.errors import BadArgument, Unsupported
from rearview.generation import Sampling
from rearview.masks import full
from rearview.models import GPT
from rearview.observation.watching.attention_layer import AttentionLayer
from rearview.observation.watching.observer import attention_layers, watching
from rearview.text import TextStream
from rearview.text_model import TextModel
from rearview.webapp.passes import logits_of, most_likely, predicts_next, under
from rearview.webapp.reading import tokens_of
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import Workspace

# The most likely tokens that are listed for each new one.
LISTED = 8
# The last tokens that are shown of a text, with the attention on them: a page can hold these for every new token.
MOST_SHOWN = 2000


def write(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """Generate; each token is an event with its text, its alternatives and the attention that chose it."""
    model = workspace.model(fields.text("model"))
    if not predicts_next(model):
        raise Unsupported(f"{model.name} cannot write", ["it does not predict the next token"])
    count = fields.number("tokens", at_least=1, below=workspace.limits.new_tokens + 1, default=100)
    ids, remark = tokens_of(workspace, model, fields.text("text"))
    room = model.context
    if room is not None and len(ids) + count > room + 1:
        ids, kept = ids[-max(1, room + 1 - count) :], room
        remark = (
            f"the prompt was cut at its beginning to its last {len(ids):,} tokens: the model has {kept:,} positions"
        )
        count = min(count, room + 1 - len(ids))
    temperature = fields.real("temperature", at_least=0, at_most=10, default=1.0)
    top_k = fields.optional_number("top_k", at_least=1, below=1 << 31)
    seed = fields.number("seed", below=1 << 31, default=0)
    stop = fields.text("stop", default="")
    ignores_mask = fields.flag("without_mask")
    sampler = Sampling(temperature=temperature, top_k=top_k).start(seed)
    stream, written, text = TextStream(model.tokenizer), list[int](), ""
    shown = model.labels(ids[-MOST_SHOWN:])
    job.emit("prompt", {"labels": shown, "before": len(ids) - len(shown), "remark": remark})
    with torch.no_grad(), under(model, full() if ignores_mask else None, replace=True), job.checking(model.model):
        for logits, attention in _steps(model, ids, written, cached=not ignores_mask):
            token = sampler.pick(logits, [*ids, *written])
            alternatives = most_likely(logits / temperature if temperature else logits, model, count=LISTED)
            chosen = float((logits / (temperature or 1)).double().softmax(-1)[token])
            written.append(token)
            ended = token == model.tokenizer.end_id
            new = "" if ended or token >= model.tokenizer.vocab_size else stream.feed(token)
            text += new
            job.emit(
                "token",
                {
                    "text": new,
                    "label": model.labels([token])[0] if token < model.tokenizer.vocab_size else f"<{token}>",
                    "probability": chosen,
                    "alternatives": alternatives,
                    "layers": len(attention),
                    "attention": base64.b64encode(attention[:, -MOST_SHOWN:].float().numpy().tobytes()).decode(),
                },
            )
            if ended or (stop and stop in text) or len(written) >= count:
                return {
                    "tokens": len(written),
                    "why": "end token" if ended else "stop" if stop and stop in text else "length",
                }
    raise AssertionError("unreachable: the last token returns")


def _steps(model: TextModel, ids: list[int], written: list[int], *, cached: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """For each next token its logits [vocab_size], and the attention of the last position [layers, keys].

    Without a cache every step reads the whole text again: a model that looks ahead has nothing that could be kept.
    """
    layers = attention_layers(model.model)
    cache: Any = None
    while True:
        rows: dict[int, Tensor] = {}
        with _last_rows(layers, rows):
            if not cached:
                logits = logits_of(model, model.batch([*ids, *written]), last_only=True)
            else:
                logits, cache = _cached_step(model, [*ids, *written], cache)
        found = [rows[n] for n in sorted(rows)]
        longest = max((len(row) for row in found), default=0)
        yield logits[0, -1].cpu(), torch.stack([torch.nn.functional.pad(row, (longest - len(row), 0)) for row in found])


def _cached_step(model: TextModel, ids: list[int], cache: Any) -> tuple[Tensor, Any]:
    inner: Any = model.model
    new = model.batch(ids if cache is None else ids[-1:])
    if isinstance(inner, GPT):
        held = inner.new_cache(1) if cache is None else cache
        return inner(new, cache=held, last_only=True), held
    out = inner(input_ids=new, past_key_values=cache, use_cache=True)
    if out.past_key_values is None:
        raise BadArgument("model", expected="a model with a cache", got=model.name)
    return out.logits[:, -1:], out.past_key_values


@contextmanager
def _last_rows(layers: list[AttentionLayer], rows: dict[int, Tensor]) -> Iterator[None]:
    """Collect the weights of the last query of each layer, mean over its heads, [keys], while the model runs."""
    numbers = {layer.module: n for n, layer in enumerate(layers)}

    def see(one: LayerCall) -> None:
        call = one.call
        rows[numbers[one.module]] = weights_of(call, -1)[0, :, 0].mean(0).cpu()

    with watching(layers, see):
        yield
