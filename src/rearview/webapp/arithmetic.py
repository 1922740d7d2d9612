"""Why: how one weight of one head is computed, number by number, with the mask and without it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.call import Call
from rearview.attention.call_slices import one_head
from rearview.errors import BadArgument, Unsupported
from rearview.explanation import explain
from rearview.explanation.examples import EXAMPLES
from rearview.webapp.passes import captured_calls
from rearview.webapp.request import Fields
from rearview.webapp.worker import Job
from rearview.webapp.workspace import SavedPage, Workspace

# The keys of a row that are listed, and the most tokens of the step-by-step page.
STRONGEST, STEPS = 8, 24


def why(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """The arithmetic of one cell, in float64 from the queries, keys and values of the layer."""
    calls, labels = _head(workspace, fields, job)
    query = fields.number("query", at_least=calls[0].frame.q_start, below=calls[-1].frame.q_end)
    call = next(each for each in calls if query < each.frame.q_end)
    key = fields.number("key", below=call.frame.k_len)
    return cell_arithmetic(call, query, key, labels)


def cell_arithmetic(call: Call, query: int, key: int, labels: list[str]) -> dict[str, Any]:
    """The steps from a query and a key to their weight, for a call of one item and one head."""
    row = query - call.frame.q_start
    q, keys, values = call.query[0, 0, row].double(), call.key[0, 0].double(), call.value[0, 0].double()
    products = q * keys[key]
    raw = keys @ q * call.scale
    scores = raw if call.softcap is None else torch.tanh(raw / call.softcap) * call.softcap
    bias = _bias_row(call, row, query)
    scores = scores if bias is None else scores + bias
    heard = _heard_row(call, query)
    sink = None if call.sinks is None else float(call.sinks.double().flatten()[0])
    with_mask, without = _softmax(scores, heard, sink), _softmax(scores, torch.ones_like(heard), sink)
    order = with_mask.weights.argsort(descending=True, stable=True)[:STRONGEST].tolist()
    return {
        "query": query,
        "key": key,
        "q": q.tolist(),
        "k": keys[key].tolist(),
        "products": products.tolist(),
        "dot": float(products.sum()),
        "scale": call.scale,
        "scaled": float(raw[key]),
        "softcap": call.softcap,
        "capped": None if call.softcap is None else float(torch.tanh(raw[key] / call.softcap) * call.softcap),
        "bias": None if bias is None else float(bias[key]),
        "score": float(scores[key]),
        "sink": sink,
        "heard": bool(heard[key]),
        "hears": int(heard.sum()),
        "keys": len(heard),
        "mask": repr(call.mask),
        "masked": _one(with_mask, key, values),
        "unmasked": _one(without, key, values),
        "strongest": [
            {
                "key": n,
                "label": labels[n] if n < len(labels) else str(n),
                "score": float(scores[n]),
                "weight": float(with_mask.weights[n]),
            }
            for n in order
            if heard[n]
        ],
        "value": values[key].tolist(),
    }


def steps_page(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """One head over the first tokens as the page of `explain`: every matrix, with the mask on and off."""
    calls, labels = _head(workspace, fields, job)
    call = calls[0]
    count = min(STEPS, call.frame.k_len)
    if call.softcap is not None or call.bias is not None or call.sinks is not None:
        raise Unsupported("This head has no step-by-step page", ["its scores have a softcap, a bias or a sink"])
    if call.frame.q_start or call.frame.q_len < count:
        raise Unsupported("This head has no step-by-step page", ["its queries are not those of its keys"])
    visible = call.mask.visible_in(call.frame, torch.device("cpu"), torch.arange(count))[0, 0]
    if visible[:, count:].any():
        why = f"the first {count} tokens hear later ones"
        raise Unsupported("This head has no step-by-step page", [why], advice=f"Use a text of up to {STEPS} tokens.")
    q, k, v = (tensor[0, 0, :count] for tensor in (call.query, call.key, call.value))
    title = f"Layer {fields.number('layer', below=1 << 20)}, head {fields.number('head', below=1 << 20)}"
    trace = explain(query=q, key=k, value=v, mask=call.mask, labels=labels[:count], scale=call.scale, title=title)
    return {"page": workspace.keep_page(SavedPage("steps.html", trace.to_html()))}


def example(workspace: Workspace, fields: Fields, job: Job) -> dict[str, Any]:
    """A worked example of `rearview explain`, as a page."""
    name = fields.text("name")
    if name not in EXAMPLES:
        raise BadArgument("name", expected=f"one of: {', '.join(EXAMPLES)}", got=repr(name))
    found = EXAMPLES[name]
    return {"page": workspace.keep_page(SavedPage(f"{name}.html", found.trace().to_html())), "title": found.title}


def _head(workspace: Workspace, fields: Fields, job: Job) -> tuple[list[Call], list[str]]:
    """The calls of one head, and the tokens of the text. Those of the latest layer are held, for the next pair."""
    number, layer = fields.text("run"), fields.number("layer", below=1 << 20)
    run = workspace.run(number)
    model = workspace.model(run.model)
    if workspace.latest_calls is None or workspace.latest_calls[0] != (number, layer):
        with job.checking(model.model):
            found = captured_calls(model, run.ids, layer=layer, mask=run.mask, replace=run.replaces)
        workspace.latest_calls = (number, layer), found
    calls = workspace.latest_calls[1]
    head = fields.number("head", below=calls[0].heads)
    return [one_head(call, 0, head) for call in calls], model.labels(run.ids)


class _Softmax:
    """A row of weights with the parts of its denominator."""

    def __init__(self, weights: Tensor, top: float, total: float):
        self.weights, self.top, self.total = weights, top, total


def _softmax(scores: Tensor, heard: Tensor, sink: float | None) -> _Softmax:
    shown = scores.masked_fill(~heard, -math.inf)
    top = max(float(shown.max()), -math.inf if sink is None else sink)
    if top == -math.inf:
        return _Softmax(torch.zeros_like(scores), 0.0, 0.0)
    exponentials = (shown - top).exp()
    total = float(exponentials.sum()) + (0.0 if sink is None else math.exp(sink - top))
    return _Softmax(exponentials / total, top, total)


def _one(row: _Softmax, key: int, values: Tensor) -> dict[str, Any]:
    weight = float(row.weights[key])
    return {
        "top": row.top,
        "total": row.total,
        "exponential": weight * row.total,
        "weight": weight,
        "contribution": (weight * values[key]).tolist(),
        "output": (row.weights @ values).tolist(),
    }


def _bias_row(call: Call, row: int, query: int) -> Tensor | None:
    if call.bias is None:
        return None
    if isinstance(call.bias, Alibi):
        tile = call.bias.tile(torch.tensor([query]), torch.arange(call.frame.k_len), torch.float64)
        return tile.reshape(-1)[: call.frame.k_len].cpu()
    whole = call.bias.expand(1, 1, call.frame.q_len, call.frame.k_len)
    return whole[0, 0, row].double().cpu()


def _heard_row(call: Call, query: int) -> Tensor:
    if not call.frame.q_start <= query < call.frame.q_end:
        raise BadArgument("query", expected="a query of the layer", got=query)
    rows = torch.tensor([query - call.frame.q_start])
    return call.mask.visible_in(call.frame, torch.device("cpu"), rows)[0, 0, 0]
