"""Cut: take away a link, a head's view of a token, a token for everyone, or a whole head, and see what changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.intervention import masked
from rearview.masks import Mask, full, padding, ranges
from rearview.observation.watching.observer import attention_layers
from rearview.text_model import TextModel
from rearview.webapp.passes import has_all_logits, logits_of, losses, most_likely, predicts_next, under
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import ReadRun, Workspace

MOST_CUTS, LISTED = 64, 12
# The number of tokens that are read at once when each token is taken away in turn.
BATCH_TOKENS = 8192


def cut(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """The next tokens and the loss, before the cuts and after them."""
    run, model = _run(workspace, fields)
    position = fields.number("position", below=len(run.ids))
    cuts = fields.objects("cuts", most=MOST_CUTS)
    # Where the logits of the whole text are too many, there is no loss, and the model reads up to the word.
    whole = has_all_logits(model, len(run.ids))
    ids = run.ids if whole else run.ids[: position + 1]
    before = _logits(model, run, ids, job, last_only=not whole)
    with ExitStack() as stack:
        for each in cuts:
            stack.enter_context(_taken_away(model, each, len(run.ids)))
        after = _logits(model, run, ids, job, last_only=not whole)
    place = position if whole else -1
    return {
        "position": position,
        "before": _told(model, before, ids, place),
        "after": _told(model, after, ids, place),
        "likely": _changes(model, before[place], after[place]),
    }


def rank(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """Each link of a word, each token, or each head taken away by itself: how much that moves what the model says.

    A link of a word is a token that this word alone no longer hears, in every layer.
    """
    run, model = _run(workspace, fields)
    position = fields.number("position", below=len(run.ids))
    what = fields.text("what")
    # What is taken away is compared with a run over the same tokens.
    before = _logits(model, run, run.ids[: position + 1], job, last_only=True)[0].double().log_softmax(-1)
    target = run.ids[position + 1] if position + 1 < len(run.ids) else int(before.argmax())
    if what in ("links", "tokens"):
        rows = _without_tokens(model, run, position, job, for_all=what == "tokens")
    elif what == "heads":
        rows = _without_heads(model, run, position, job)
    else:
        raise BadArgument("what", expected="'links', 'tokens' or 'heads'", got=repr(what))
    effects = [
        {**place, "change": float(after[target] - before[target]), "moved": _distance(before, after)}
        for place, after in rows
    ]
    effects.sort(key=lambda effect: -effect["moved"])
    return {
        "position": position,
        "target": model.labels([target])[0],
        "probability": float(before[target].exp()),
        "what": what,
        "effects": effects[: 4 * LISTED],
        "tried": len(effects),
    }


def _run(workspace: Workspace, fields: Fields) -> tuple[ReadRun, TextModel]:
    run = workspace.run(fields.text("run"))
    model = workspace.model(run.model)
    if not predicts_next(model):
        raise Unsupported(f"{model.name} has no next token", ["it is not a model that continues a text"])
    return run, model


def _logits(model: TextModel, run: ReadRun, ids: list[int], job: Job, *, last_only: bool) -> Tensor:
    with under(model, run.mask, replace=run.replaces), job.checking(model.model):
        return logits_of(model, model.batch(ids), last_only=last_only)[0].cpu()


@contextmanager
def _taken_away(model: TextModel, fields: Fields, length: int) -> Iterator[None]:
    """The model without what the page has cut: by layer, head, query and key, each of which may be left open."""
    count = len(attention_layers(model.model))
    layer = fields.optional_number("layer", below=count)
    head = fields.optional_number("head", below=1 << 20)
    query = fields.optional_number("query", below=length)
    key = fields.optional_number("key", below=length)
    with masked(model.model, mask=_without(query, key, length), layer=layer, heads=head):
        yield


def _without(query: int | None, key: int | None, length: int) -> Mask:
    """Everything but the pairs of this query and this key; None stands for all of them."""
    if query is None and key is None:
        return ~full()
    starts, ends = torch.zeros(length, dtype=torch.int64), torch.zeros(length, dtype=torch.int64)
    rows = slice(None) if query is None else slice(query, query + 1)
    starts[rows], ends[rows] = (0, length) if key is None else (key, key + 1)
    return ~ranges(starts, ends)


def _without_tokens(
    model: TextModel, run: ReadRun, position: int, job: Job, *, for_all: bool
) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """What the model says when nobody hears a token, or the last word alone does not: one batch item per token."""
    labels = model.labels(run.ids)
    ids = run.ids[: position + 1]
    # Everything for the queries before the last one, and nothing for it.
    starts, ends = torch.zeros(len(ids), dtype=torch.int64), torch.full((len(ids),), len(ids))
    ends[-1] = 0
    size = max(1, BATCH_TOKENS // len(ids))
    for first in range(0, len(ids), size):
        keys = range(first, min(first + size, len(ids)))
        real = torch.ones(len(keys), len(ids), dtype=torch.bool)
        real[range(len(keys)), list(keys)] = False
        tokens = model.batch(ids).expand(len(keys), -1)
        with (
            under(model, run.mask, replace=run.replaces),
            masked(model.model, mask=padding(real) if for_all else padding(real) | ranges(starts, ends)),
            job.checking(model.model),
        ):
            after = logits_of(model, tokens, last_only=True)[:, -1].cpu().double().log_softmax(-1)
        job.emit("progress", {"done": keys.stop, "of": len(ids)})
        for key, row in zip(keys, after, strict=True):
            yield {"key": key, "label": labels[key]}, row


def _without_heads(model: TextModel, run: ReadRun, position: int, job: Job) -> Iterator[tuple[dict[str, Any], Tensor]]:
    """What the model says when a head hears nothing, for every head of every layer."""
    layers = attention_layers(model.model)
    tokens, done = model.batch(run.ids[: position + 1]), 0
    total = sum(layer.heads or 0 for layer in layers)
    for n, layer in enumerate(layers):
        for head in range(layer.heads or 0):
            off = masked(model.model, mask=~full(), layer=n, heads=head)
            with under(model, run.mask, replace=run.replaces), off, job.checking(model.model):
                after = logits_of(model, tokens, last_only=True)[0, -1].cpu().double().log_softmax(-1)
            done += 1
            job.emit("progress", {"done": done, "of": total})
            yield {"layer": n, "head": head, "label": f"layer {n}, head {head}"}, after


def _told(model: TextModel, logits: Tensor, ids: list[int], position: int) -> dict[str, Any]:
    each = losses(logits, ids) if len(logits) == len(ids) > 1 else None
    return {
        "next": most_likely(logits[position], model, count=LISTED),
        "loss": None if each is None else float(each.mean()),
    }


def _changes(model: TextModel, before: Tensor, after: Tensor) -> list[dict[str, Any]]:
    """The tokens that were or have become likely, with both probabilities."""
    old, new = before.double().softmax(-1), after.double().softmax(-1)
    either = torch.maximum(old, new).topk(min(LISTED, len(old))).indices.tolist()
    known = model.tokenizer.vocab_size
    return [
        {
            "label": model.labels([token])[0] if token < known else f"<{token}>",
            "before": float(old[token]),
            "after": float(new[token]),
        }
        for token in either
    ]


def _distance(before: Tensor, after: Tensor) -> float:
    """The total variation distance of two distributions, from their logarithms: the probability that moved."""
    return float((before.exp() - after.exp()).abs().sum() / 2)
