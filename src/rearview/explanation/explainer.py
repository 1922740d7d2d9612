"""explain(): one attention computed in float64, with the matrix of every step.

>>> import torch
>>> from rearview import explain
>>> x = torch.eye(2)
>>> explain(x, x, x, x, labels=["I", "love"])["scores"].matrix[0].round(decimals=3).tolist()
[[0.707, 0.0], [0.0, 0.707]]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor, nn

from rearview.attention import MaskedSelfAttention
from rearview.attention.call import Call
from rearview.errors import BadArgument
from rearview.explanation.inputs import (
    Projected,
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
from rearview.explanation.positions import Rotary, as_numbers
from rearview.explanation.stages import attention_stages, input_stages
from rearview.explanation.trace import Stage, Trace
from rearview.masks import Mask, causal
from rearview.masks.frame import whole_number

Matrix: TypeAlias = Tensor | Sequence[Sequence[float]]
Positions: TypeAlias = str | Rotary | Matrix | None


def explain(
    x: Matrix | MaskedSelfAttention | nn.MultiheadAttention | None = None,
    w_q: Matrix | None = None,
    w_k: Matrix | None = None,
    w_v: Matrix | None = None,
    *,
    query: Matrix | None = None,
    key: Matrix | None = None,
    value: Matrix | None = None,
    positions: Positions = None,
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
    sinks: Tensor | Sequence[float] | None = None,
    title: str = "",
) -> Trace:
    """Every step of one attention with exact numbers, and the same steps without the mask.

    There are three ways to call it:
        explain(x, w_q, w_k, w_v): the input [time, features] and the weights [in, out], as in Q = X W_Q.
        explain(query=q, key=k, value=v): Q, K and V, each [time, dim] or [heads, time, dim].
        explain(layer, x): a `MaskedSelfAttention`, or an `nn.MultiheadAttention` used for self-attention, and its
            input [time, dim].

    Args:
        positions: "sinusoidal" (as in the original paper), "rotary", or a matrix P [time, features] that is added.
        mask: who may be heard. Default: causal(). With a `MaskedSelfAttention` it is combined with the layer's mask.
        labels: the tokens or speakers, one per row; a string is split at spaces. `key_labels`, where keys differ.
        features: the names of the input's columns. `query_features`, `key_features` and `value_features` name the
            columns of Q, K and V in a head.
        reflexives: the word for a row hearing itself, one per row. Default: "itself".
        num_heads: the number of heads that the columns of Q, K and V are split into.
        w_o: the output projection of the concatenated heads.
        scale: the factor of the scores. Default: 1 / sqrt(dim of a head).
        sinks: a logit per head, which takes part in every softmax and belongs to no key, as in `attend`.

    >>> trace = explain(query=[[1.0], [1.0]], key=[[0.0], [0.0]], value=[[2.0], [4.0]], labels="I love")
    >>> trace["output"].matrix[0].tolist()
    [[2.0], [3.0]]
    """
    arguments = {"x": x, "w_q": w_q, "w_k": w_k, "w_v": w_v, "query": query, "key": key, "value": value, "w_o": w_o}
    given = ", ".join(name for name, argument in arguments.items() if argument is not None) or "none of them"
    rotary = as_rotary(positions)
    num_heads = whole_number(num_heads, "num_heads", at_least=1)
    if isinstance(x, nn.MultiheadAttention):
        # It has no mask of its own.
        x, mask = MaskedSelfAttention.from_multihead(x, mask=causal() if mask is None else mask), None
    if isinstance(x, nn.Module) and not isinstance(x, MaskedSelfAttention):
        raise BadArgument(
            "x",
            expected="a matrix, a MaskedSelfAttention or an nn.MultiheadAttention",
            got=type(x).__name__,
            advice="For the attention of a model use observe(model), or explain_model for a layer of a GPT or BERT.",
        )
    if isinstance(x, MaskedSelfAttention):
        if w_q is None or any(given is not None for given in (w_k, w_v, query, key, value, w_o)) or num_heads != 1:
            got = "a layer alone" if w_q is None else "further arguments"
            raise BadArgument("x", expected="explain(layer, x), with the weights of the layer", got=got)
        projected = _of_layer(x, as_matrix(w_q, "x"), positions, labels, features)
        if x.rotary is not None:
            if rotary is not None:
                expected = "no rotary positions for a layer that has its own"
                raise BadArgument("positions", expected=expected, got=repr(positions))
            rotary = Rotary(x.rotary, halves=True)
        mask = x.mask if mask is None else x.mask & mask
    elif x is not None:
        if w_q is None or w_k is None or w_v is None or not (query is key is value is None):
            raise BadArgument("x", expected="x with w_q, w_k and w_v, or query, key and value", got=given)
        stages = _input_stages(as_matrix(x, "x"), positions, labels, features)
        source, weights = stages[-1].matrix[0], {"w_q": w_q, "w_k": w_k, "w_v": w_v}
        heads = [split_heads(project(source, weight, name), num_heads, name) for name, weight in weights.items()]
        projected = Projected(*heads, labels=stages[0].rows, stages=stages)
    else:
        if query is None or key is None or value is None or not (w_q is w_k is w_v is None):
            raise BadArgument("query, key, value", expected="all three, or x with w_q, w_k and w_v", got=given)
        if positions is not None and rotary is None:
            raise BadArgument("positions", expected="'rotary' when Q, K and V are given", got=repr(positions))
        if features is not None:
            expected = "query_features, key_features and value_features when Q, K and V are given"
            raise BadArgument("features", expected=expected, got="names for the columns of an input")
        heads = [as_heads(m, num_heads, name) for m, name in ((query, "query"), (key, "key"), (value, "value"))]
        projected = Projected(*heads, labels=_query_names(labels, heads[0].shape[1], heads[1].shape[1]))
    if w_o is not None:
        projected = replace(projected, w_o=as_matrix(w_o, "w_o"))
    together = projected.query.shape[0] * projected.value.shape[-1]
    if projected.w_o is not None and projected.w_o.shape[0] != together:
        expected = f"{together} rows, one per column of the concatenated heads"
        raise BadArgument("w_o", expected=expected, got=projected.w_o.shape[0])
    k_len = projected.key.shape[1]
    own = key_labels is None and (labels is not None or bool(projected.stages))
    key_names = projected.labels if own else row_names(key_labels, k_len, "key_labels")
    if len(key_names) != k_len:
        raise BadArgument("key_labels", expected=f"{k_len} labels, one per key", got=len(key_names))
    spoken = tuple(reflexives) if reflexives is not None else ("itself",) * len(projected.labels)
    if len(spoken) != len(projected.labels):
        raise BadArgument("reflexives", expected=f"{len(projected.labels)} words, one per row", got=len(spoken))
    call = _call(projected, causal() if mask is None else mask, rotary, scale, sinks)
    columns = (
        head_column_names(query_features, projected.query, "query"),
        head_column_names(key_features, projected.key, "key"),
        head_column_names(value_features, projected.value, "value"),
    )
    stages = attention_stages(call, projected, key_names, columns, turned=rotary is not None)
    visible, shown = call.visible()[0], (*projected.stages, *stages)
    return Trace(title, call.mask, projected.labels, key_names, spoken, call.heads, call.scale, visible, shown)


def _call(
    projected: Projected,
    mask: Mask,
    rotary: Rotary | None,
    scale: float | None,
    sinks: Tensor | Sequence[float] | None,
) -> Call:
    query, key, value = projected.query, projected.key, projected.value
    if rotary:
        # Queries are at the last positions of the keys.
        query, key = rotary.turn(query, key.shape[1] - query.shape[1]), rotary.turn(key)
    batch = (tensor.unsqueeze(0) for tensor in (query, key, value))
    logits = None if sinks is None else as_numbers(sinks, "sinks", expected="numbers, one per head")
    return Call.of(*batch, mask=mask, scale=scale, bias=projected.score_bias, sinks=logits)


def _input_stages(
    x: Tensor, positions: Positions, labels: Sequence[str] | str | None, features: Sequence[str] | None
) -> tuple[Stage, ...]:
    added = None if as_rotary(positions) else as_positions(positions, x)
    return input_stages(x, added, row_names(labels, x.shape[0], "labels"), column_names(features, x))


def _query_names(labels: Sequence[str] | str | None, q_len: int, k_len: int) -> tuple[str, ...]:
    # Queries without labels are numbered by their positions, the last of the keys.
    unnamed = labels is None and q_len <= k_len
    return numbered("t", k_len)[k_len - q_len :] if unnamed else row_names(labels, q_len, "labels")


def _of_layer(
    layer: MaskedSelfAttention,
    x: Tensor,
    positions: Positions,
    labels: Sequence[str] | str | None,
    features: Sequence[str] | None,
) -> Projected:
    if x.shape[1] != layer.w_q.in_features:
        raise BadArgument("x", expected=f"{layer.w_q.in_features} columns, the layer's dim", got=x.shape[1])
    stages = _input_stages(x, positions, labels, features)
    source = stages[-1].matrix[0]

    def heads_of(linear: nn.Linear, count: int) -> Tensor:
        projected = source @ linear.weight.detach().double().cpu().T
        if linear.bias is not None:
            projected = projected + linear.bias.detach().double().cpu()
        return split_heads(projected, count, "x")

    out = layer.w_o
    return Projected(
        heads_of(layer.w_q, layer.num_heads),
        heads_of(layer.w_k, layer.num_kv_heads),
        heads_of(layer.w_v, layer.num_kv_heads),
        labels=stages[0].rows,
        stages=stages,
        w_o=None if out is None else out.weight.detach().double().cpu().T,
        b_o=None if out is None or out.bias is None else out.bias.detach().double().cpu(),
        biased=layer.w_q.bias is not None,
        score_bias=layer.score_bias,
    )
