"""The stages of attention in order: for each its symbol, formula, exact matrix and one sentence."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.reference import masked_scores
from rearview.attention.functional import weights_of
from rearview.explanation.inputs import Projected, numbered
from rearview.explanation.trace import SINKS, Stage
from rearview.explanation.words import WITH_SINK
from rearview.masks import full


def input_stages(
    x: Tensor, positions: Tensor | None, labels: tuple[str, ...], features: tuple[str, ...]
) -> tuple[Stage, ...]:
    """X; with positions also P and X' = X + P."""
    first = Stage("x", "X", "X", "X", "The input, one row per position.", x.unsqueeze(0), labels, features)
    if positions is None:
        return (first,)
    added = (x + positions).unsqueeze(0)
    return (
        first,
        Stage("p", "P", "P", "P", "The encoding of each position.", positions.unsqueeze(0), labels, features),
        Stage(
            "x_positioned", "X'", "X' = X + P", "X' = X + P", "The input with its positions.", added, labels, features
        ),
    )


def attention_stages(
    call: Call,
    projected: Projected,
    key_labels: tuple[str, ...],
    columns: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    *,
    turned: bool,
) -> tuple[Stage, ...]:
    """From Q, K and V to the output. `turned` says that the call has Q and K rotated by their positions."""
    without = replace(call, mask=full())
    weights, unmasked = (weights_of(each)[0] for each in (call, without))
    # A value that no query may hear may be NaN, and 0 x NaN is NaN.
    _, heard = call.shielded()
    # A key head that serves several query heads is shown with each of them.
    shared = (projected.key, projected.value, heard[0], call.key[0])
    key, value, heard_value, turned_key = (t.repeat_interleave(call.queries_per_key_head, dim=0) for t in shared)
    labels, (query_names, key_names, value_names) = projected.labels, columns
    source = projected.stages[-1].symbol if projected.stages else None

    def of(letter: str) -> tuple[str, str]:
        bias = f" + b_{letter}" if projected.biased else ""
        formula = f"{letter} = {source} W_{letter}{bias}" if source else letter
        return formula, formula

    stages = [
        Stage("q", "Q", *of("Q"), "What each position looks for.", projected.query, labels, query_names),
        Stage("k", "K", *of("K"), "What each position offers to others.", key, key_labels, key_names),
        Stage("v", "V", *of("V"), "What each position says when it is heard.", value, key_labels, value_names),
    ]
    q, k = "Q", "K"
    if turned:
        q, k = "Q'", "K'"
        said = "rotated by its position, so that a score depends on the distance."
        stages += [
            Stage("q_turned", "Q'", "Q' = R Q", "Q' = RQ", f"Each query, {said}", call.query[0], labels, query_names),
            Stage("k_turned", "K'", "K' = R K", "K' = RK", f"Each key, {said}", turned_key, key_labels, key_names),
        ]
    visible, scores, open_output = call.visible()[0], masked_scores(without)[0], unmasked @ value
    additive = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)
    usual = math.isclose(call.scale, 1 / math.sqrt(projected.query.shape[-1]))
    per, per_latex = ("/ √d", r"/ \sqrt{d}") if usual else (f"× {call.scale:g}", rf"\times {call.scale:g}")
    bias = " + B" if call.bias is not None else ""
    sums, added = ("rows sum to 1", "average") if call.sinks is None else ("rows and their sink sum to 1", "sum")
    stages += [
        Stage(
            "scores",
            "S",
            f"S = {q} {k}ᵀ {per}{bias}",
            rf"S = {q}{k}^\top {per_latex}{bias}",
            "How well each query and key fit, for every pair, including the forbidden ones.",
            scores,
            labels,
            key_labels,
        ),
        Stage(
            "mask",
            "M",
            f"M = {call.mask!r}",
            r"M_{ij} = 0 \text{ if } i \text{ may hear } j, \; -\infty \text{ otherwise}",
            "0 where a key may be heard, -∞ where it may not.",
            additive,
            labels,
            key_labels,
            torch.zeros_like(additive),
        ),
        Stage(
            "masked",
            "S + M",
            "S + M",
            "S + M",
            "Allowed scores stay as they are; forbidden ones become -∞.",
            scores.masked_fill(~visible, -torch.inf),
            labels,
            key_labels,
            scores,
        ),
        *_sinks_stages(call),
        Stage(
            "weights",
            "A",
            "A = softmax(S + M)" if call.sinks is None else WITH_SINK,
            rf"A = \operatorname{{softmax}}(S + M{'' if call.sinks is None else ', s'})",
            f"How much each query hears of each key: {sums}, forbidden cells are exactly 0.",
            weights,
            labels,
            key_labels,
            unmasked,
        ),
        Stage(
            "output",
            "O",
            "O = A V",
            "O = AV",
            f"What each position hears: the {added} of the values that it may hear, by their weights.",
            weights @ heard_value,
            labels,
            value_names,
            open_output,
        ),
    ]
    if projected.w_o is None:
        return tuple(stages)
    many, plus = call.heads > 1, "" if projected.b_o is None else " + b_O"
    stages.append(
        Stage(
            "projected",
            "Y",
            ("Y = [O₁ … Oₕ] W_O" if many else "Y = O W_O") + plus,
            (r"Y = [O_1 \ldots O_h] W_O" if many else "Y = O W_O") + plus,
            "The heads concatenated and projected: the output of the layer.",
            _concatenated(weights @ heard_value, projected.w_o, projected.b_o),
            labels,
            numbered("y", projected.w_o.shape[-1]),
            _concatenated(open_output, projected.w_o, projected.b_o),
        )
    )
    return tuple(stages)


def _sinks_stages(call: Call) -> tuple[Stage, ...]:
    """The learned sink of each head, where there is one."""
    if call.sinks is None:
        return ()
    said = "A logit that takes part in every softmax and belongs to no key: its weight is missing from the keys."
    return (Stage(SINKS, "s", "s", "s", said, call.sinks.view(-1, 1, 1), ("every query",), ("sink",)),)


def _concatenated(output: Tensor, w_o: Tensor, b_o: Tensor | None) -> Tensor:
    # [heads, time, dim] -> [1, time, heads x dim]
    together = output.movedim(0, 1).flatten(1) @ w_o
    return (together if b_o is None else together + b_o).unsqueeze(0)
