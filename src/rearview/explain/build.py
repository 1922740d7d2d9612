"""explain(): one attention, computed in float64 and kept at every step.

>>> import torch
>>> from rearview import explain
>>> x = torch.eye(2)
>>> explain(x, x, x, x, labels=["I", "love"])["scores"].matrix[0].round(decimals=3).tolist()
[[0.707, 0.0], [0.0, 0.707]]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from rearview.attention import MaskedSelfAttention
from rearview.attention.engines.reference import masked_scores, weights_and_lse
from rearview.attention.request import Request
from rearview.errors import BadArgument
from rearview.explain.inputs import (
    as_heads,
    as_matrix,
    as_positions,
    as_rotary,
    column_names,
    head_column_names,
    numbered,
    project,
    row_names,
    split_heads,
)
from rearview.explain.positions import Rotary
from rearview.explain.stages import attention_stages, input_stages
from rearview.explain.trace import Stage, Trace
from rearview.masks import Mask, causal, full
from rearview.masks.frame import whole_number

Matrix = Tensor | Sequence[Sequence[float]]


def explain(
    x: Matrix | MaskedSelfAttention | None = None,
    w_q: Matrix | None = None,
    w_k: Matrix | None = None,
    w_v: Matrix | None = None,
    *,
    query: Matrix | None = None,
    key: Matrix | None = None,
    value: Matrix | None = None,
    positions: str | Rotary | Matrix | None = None,
    mask: Mask | None = None,
    labels: Sequence[str] | str | None = None,
    key_labels: Sequence[str] | str | None = None,
    features: Sequence[str] | None = None,
    query_features: Sequence[str] | None = None,
    key_features: Sequence[str] | None = None,
    value_features: Sequence[str] | None = None,
    reflexives: Sequence[str] | None = None,
    num_heads: int = 1,
    w_o: Matrix | None = None,
    scale: float | None = None,
    title: str = "",
) -> Trace:
    """Every step of one attention, with exact numbers; and the same without the mask beside it.

    Three ways in:
        explain(x, w_q, w_k, w_v): from the input [time, features] and weights [in, out], as in Q = X W_Q.
        explain(query=q, key=k, value=v): from Q, K and V, [time, dim], or [heads, time, dim].
        explain(layer, x): from a `MaskedSelfAttention` and its input.

    Args:
        positions: "sinusoidal" (the original paper's), "rotary", or a matrix P [time, features] (a learned table).
        mask: who may be heard; causal() unless given (a layer brings its own).
        labels: the tokens or speakers, one a row; a text is split at spaces. `key_labels` where keys differ.
        features: names of the input's columns. `query_features`, `key_features` and `value_features`: of Q's, K's and
            V's columns in a head.
        reflexives: how each row speaks of itself, "itself" unless given.
        num_heads: splits the columns of Q, K and V. `w_o` projects the heads, side by side.
        scale: 1 / sqrt(dim of a head) unless given.

    >>> trace = explain(query=[[1.0], [1.0]], key=[[0.0], [0.0]], value=[[2.0], [4.0]], labels="I love")
    >>> trace["output"].matrix[0].tolist()
    [[2.0], [3.0]]
    """
    columns = (query_features, key_features, value_features)
    if isinstance(x, MaskedSelfAttention):
        if w_q is None or any(given is not None for given in (w_k, w_v, query, key, value, w_o)) or num_heads != 1:
            raise BadArgument("x", expected="explain(layer, x), the layer bringing its weights", came="other arguments")
        return _of_layer(x, as_matrix(w_q, "x"), positions, mask, labels, features, columns, reflexives, scale, title)
    stages: list[Stage] = []
    mask = causal() if mask is None else mask
    num_heads = whole_number(num_heads, "num_heads", at_least=1)
    rotary = as_rotary(positions)
    if x is not None:
        if w_q is None or w_k is None or w_v is None or not (query is key is value is None):
            raise BadArgument("x", expected="x with w_q, w_k and w_v, or query, key and value", came="a mixture")
        rows = as_matrix(x, "x")
        names = row_names(labels, rows.shape[0], "labels")
        stages = input_stages(
            rows, None if rotary else as_positions(positions, rows), names, column_names(features, rows)
        )
        source = stages[-1].matrix[0]
        projected = [project(source, w, name) for w, name in ((w_q, "w_q"), (w_k, "w_k"), (w_v, "w_v"))]
        heads = [split_heads(m, num_heads, name) for m, name in zip(projected, ("w_q", "w_k", "w_v"), strict=True)]
    else:
        if query is None or key is None or value is None or not (w_q is w_k is w_v is None):
            raise BadArgument("query, key, value", expected="all three, or x with w_q, w_k and w_v", came="not all")
        if positions is not None and rotary is None:
            raise BadArgument("positions", expected="'rotary' when Q, K and V are given", came=repr(positions))
        if features is not None:
            expected = "query_features, key_features and value_features when Q, K and V are given"
            raise BadArgument("features", expected=expected, came="names for the columns of an input")
        heads = [as_heads(m, num_heads, name) for m, name in ((query, "query"), (key, "key"), (value, "value"))]
        q_len, k_len = heads[0].shape[1], heads[1].shape[1]
        # Unnamed queries are numbered by their positions, the last of the keys.
        unnamed = labels is None and q_len <= k_len
        names = numbered("t", k_len)[k_len - q_len :] if unnamed else row_names(labels, q_len, "labels")
    return _trace(
        stages,
        heads,
        mask,
        names,
        names if key_labels is None and labels is not None else row_names(key_labels, heads[1].shape[1], "key_labels"),
        rotary=rotary,
        columns=columns,
        reflexives=reflexives,
        w_o=None if w_o is None else as_matrix(w_o, "w_o"),
        b_o=None,
        scale=scale,
        title=title,
        source=stages[-1].symbol if stages else None,
    )


def _of_layer(
    layer: MaskedSelfAttention,
    x: Tensor,
    positions: Any,
    mask: Mask | None,
    labels: Sequence[str] | str | None,
    features: Sequence[str] | None,
    columns: tuple[Sequence[str] | None, ...],
    reflexives: Sequence[str] | None,
    scale: float | None,
    title: str,
) -> Trace:
    if x.shape[1] != layer.w_q.in_features:
        raise BadArgument("x", expected=f"{layer.w_q.in_features} columns, as the layer's dim", came=x.shape[1])
    names = row_names(labels, x.shape[0], "labels")
    rotary = as_rotary(positions)
    stages = input_stages(x, None if rotary else as_positions(positions, x), names, column_names(features, x))
    source = stages[-1].matrix[0]
    heads = []
    for linear, count in (
        (layer.w_q, layer.num_heads),
        (layer.w_k, layer.num_kv_heads),
        (layer.w_v, layer.num_kv_heads),
    ):
        projected = source @ linear.weight.detach().double().cpu().T
        if linear.bias is not None:
            projected = projected + linear.bias.detach().double().cpu()
        # A key head that serves several query heads is shown with each of them.
        heads.append(split_heads(projected, count, "x").repeat_interleave(layer.num_heads // count, dim=0))
    out = layer.w_o
    return _trace(
        stages,
        heads,
        layer.mask if mask is None else layer.mask & mask,
        names,
        names,
        rotary=rotary,
        columns=columns,
        reflexives=reflexives,
        w_o=None if out is None else out.weight.detach().double().cpu().T,
        b_o=None if out is None or out.bias is None else out.bias.detach().double().cpu(),
        scale=scale,
        title=title,
        source=stages[-1].symbol,
        biased=layer.w_q.bias is not None,
        score_bias=layer.score_bias,
    )


def _trace(
    stages: list[Stage],
    heads: list[Tensor],
    mask: Mask,
    labels: tuple[str, ...],
    key_labels: tuple[str, ...],
    *,
    rotary: Rotary | None,
    columns: tuple[Sequence[str] | None, ...],
    reflexives: Sequence[str] | None,
    w_o: Tensor | None,
    b_o: Tensor | None,
    scale: float | None,
    title: str,
    source: str | None,
    biased: bool = False,
    score_bias: Any = None,
) -> Trace:
    query, key, value = heads
    if key_labels and len(key_labels) != key.shape[1]:
        raise BadArgument("key_labels", expected=f"{key.shape[1]} labels, one a key", came=len(key_labels))
    # Queries stand at the last positions of the keys.
    turned = (rotary.turn(query, key.shape[1] - query.shape[1]), rotary.turn(key)) if rotary else (query, key)
    request = Request.of(*(t.unsqueeze(0) for t in (*turned, value)), mask=mask, scale=scale, bias=score_bias)
    without = Request.of(*(t.unsqueeze(0) for t in (*turned, value)), mask=full(), scale=scale, bias=score_bias)
    weights, unmasked = (weights_and_lse(each)[0][0] for each in (request, without))
    # A value that no query may hear may hold NaN, and 0 x NaN is NaN.
    _, heard = request.shielded()
    # A key head that serves several query heads is shown with each of them.
    shared = (key, value, heard[0], turned[1])
    key, value, heard, turned_key = (t.repeat_interleave(request.queries_per_key_head, dim=0) for t in shared)
    visible = request.visible()[0]
    spoken = tuple(reflexives) if reflexives is not None else ("itself",) * len(labels)
    if len(spoken) != len(labels):
        raise BadArgument("reflexives", expected=f"{len(labels)} words, one a row", came=len(spoken))
    together = value.shape[0] * value.shape[-1]
    if w_o is not None and w_o.shape[0] != together:
        expected = f"{together} rows, as the heads side by side have columns"
        raise BadArgument("w_o", expected=expected, came=w_o.shape[0])
    stages = stages + attention_stages(
        heads=(query, key, value),
        turned=(turned[0], turned_key) if rotary else None,
        scores=masked_scores(without)[0],
        visible=visible,
        weights=weights,
        unmasked=unmasked,
        output=weights @ heard,
        labels=labels,
        key_labels=key_labels,
        columns=tuple(head_column_names(*each) for each in zip(columns, heads, ("query", "key", "value"), strict=True)),
        mask=mask,
        source=source,
        biased=biased,
        score_biased=score_bias is not None,
        default_scale=math.isclose(request.scale, 1 / math.sqrt(query.shape[-1])),
        scale=request.scale,
        w_o=w_o,
        b_o=b_o,
    )
    return Trace(title, mask, labels, key_labels, spoken, query.shape[0], request.scale, visible, tuple(stages))
