"""The numbers of a Trace, compared with the formula; its stages; the errors of explain()."""

import math
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from rearview import (
    MaskedSelfAttention,
    RearviewError,
    Trace,
    alibi,
    attend,
    causal,
    dense,
    explain,
    full,
    padding,
    per_head,
    prefix,
    window,
)
from rearview.explanation import Rotary
from tests.explanation.traces import HEADS, TRACES, numbers, to_the_sink


def by_hand(q: Tensor, k: Tensor, v: Tensor, visible: list[list[int]], scale: float, bias: Any = None) -> tuple:
    """Scores, weights and output of one head, one number at a time."""
    scores = torch.zeros(len(q), len(k), dtype=torch.float64)
    weights, output = torch.zeros_like(scores), torch.zeros(len(q), v.shape[1], dtype=torch.float64)
    for i in range(len(q)):
        for j in range(len(k)):
            scores[i, j] = sum(float(a) * float(b) for a, b in zip(q[i], k[j], strict=True)) * scale
            scores[i, j] += 0.0 if bias is None else float(bias[i][j])
        heard = [j for j in range(len(k)) if visible[i][j]]
        total = sum(math.exp(scores[i, j]) for j in heard)
        for j in heard:
            weights[i, j] = math.exp(scores[i, j]) / total
            output[i] += weights[i, j] * v[j]
    return scores, weights, output


def lower(n: int) -> list[list[int]]:
    return [[int(j <= i) for j in range(n)] for i in range(n)]


def everyone(rows: int, columns: int) -> list[list[int]]:
    return [[1] * columns] * rows


def close(trace: Trace, head: int, q: Tensor, k: Tensor, v: Tensor, visible: list[list[int]], scale: float, bias=None):
    scores, weights, output = by_hand(q, k, v, visible, scale, bias)
    _, open_weights, open_output = by_hand(q, k, v, everyone(len(q), len(k)), scale, bias)
    assert_close(trace["scores"].of_head(head), scores, rtol=0, atol=1e-12)
    assert_close(trace["weights"].of_head(head), weights, rtol=0, atol=1e-12)
    assert_close(trace["output"].of_head(head), output, rtol=0, atol=1e-12)
    assert_close(trace["weights"].of_head(head, masked=False), open_weights, rtol=0, atol=1e-12)
    assert_close(trace["output"].of_head(head, masked=False), open_output, rtol=0, atol=1e-12)
    seen = torch.tensor(visible).bool()
    assert torch.equal(trace.visible_to(head), seen)
    assert torch.equal(trace["mask"].of_head(head), torch.zeros_like(scores).masked_fill(~seen, -math.inf))
    assert_close(trace["masked"].of_head(head), scores.masked_fill(~seen, -math.inf), rtol=0, atol=1e-12)


# The formula.


def test_from_the_input_and_weights():
    x, w_q, w_k, w_v = numbers(4, 5), numbers(5, 3, seed=1), numbers(5, 3, seed=2), numbers(5, 2, seed=3)
    trace = explain(x, w_q, w_k, w_v)
    close(trace, 0, x @ w_q, x @ w_k, x @ w_v, lower(4), 1 / math.sqrt(3))
    assert [stage.symbol for stage in trace.stages] == ["X", "Q", "K", "V", "S", "M", "S + M", "A", "O"]
    formulas = [stage.formula for stage in trace.stages[:5]]
    assert formulas == ["X", "Q = X W_Q", "K = X W_K", "V = X W_V", "S = Q Kᵀ / √d"]
    assert torch.equal(trace["x"].matrix[0], x)
    assert trace.labels == trace.key_labels == ("t1", "t2", "t3", "t4")
    assert trace["q"].columns == ("d1", "d2", "d3")
    assert trace["output"].columns == trace["v"].columns == ("v1", "v2")
    assert trace["x"].columns == ("x1", "x2", "x3", "x4", "x5")


def test_several_heads_split_the_columns_and_are_projected_together():
    x, w_q, w_k = numbers(3, 4), numbers(4, 4, seed=1), numbers(4, 4, seed=2)
    w_v, w_o = numbers(4, 6, seed=3), numbers(6, 2, seed=4)
    trace = explain(x, w_q, w_k, w_v, num_heads=2, w_o=w_o)
    q, k, v = x @ w_q, x @ w_k, x @ w_v
    for head, (a, b) in enumerate([((0, 2), (0, 3)), ((2, 4), (3, 6))]):
        close(trace, head, q[:, slice(*a)], k[:, slice(*a)], v[:, slice(*b)], lower(3), 1 / math.sqrt(2))
    side_by_side = torch.cat([trace["output"].of_head(0), trace["output"].of_head(1)], dim=-1)
    assert_close(trace["projected"].matrix, (side_by_side @ w_o).unsqueeze(0))
    assert trace["projected"].formula == "Y = [O₁ … Oₕ] W_O"
    assert trace.heads == 2
    # One projection for both heads; whichever is asked for gets it.
    assert torch.equal(trace["projected"].of_head(1), trace["projected"].of_head(0))


def test_sinks_take_weight_from_the_keys():
    q, k, v = (numbers(2, 4, 3, seed=seed) for seed in (1, 2, 3))
    trace = explain(query=q, key=k, value=v, sinks=[0.5, -2.0], labels="I love sushi too")
    for head, sink in enumerate((0.5, -2.0)):
        for masked in (True, False):
            scores = trace["masked"].of_head(head, masked=masked)
            by_hand = scores.exp() / (scores.exp().sum(-1, keepdim=True) + math.exp(sink))
            assert_close(trace["weights"].of_head(head, masked=masked), by_hand, rtol=0, atol=1e-12)
            assert_close(trace["output"].of_head(head, masked=masked), by_hand @ v[head], rtol=0, atol=1e-12)
    assert trace["sinks"].matrix.flatten().tolist() == [0.5, -2.0]
    assert trace["weights"].formula == "A = softmax(S + M, s)"
    first, missing = trace.readings(1)[0], 1 - float(trace["weights"].of_head(1)[0, 0])
    assert first.sentence == f"I — {100 - 100 * missing:.1f} % itself, {100 * missing:.1f} % to the sink"
    assert not any("exactly the value" in remark for remark in trace.remarks(1))
    again = Trace.from_json(trace.to_json())
    assert again.readings(1) == trace.readings(1)
    with pytest.raises(RearviewError, match=r"^sinks: expected numbers, one per head, got 'x'\.$"):
        explain(query=q, key=k, value=v, sinks="x")  # pyright: ignore[reportArgumentType]
    with pytest.raises(RearviewError, match=r"^sinks: expected a float tensor \[2\], one logit per query head, got "):
        explain(query=q, key=k, value=v, sinks=[1.0])


def test_from_query_key_and_value_of_every_kind():
    q, k, v = numbers(4, 2), numbers(4, 2, seed=1), numbers(4, 3, seed=2)
    close(explain(query=q, key=k, value=v), 0, q, k, v, lower(4), 1 / math.sqrt(2))
    close(explain(query=q.tolist(), key=k.tolist(), value=v.tolist()), 0, q, k, v, lower(4), 1 / math.sqrt(2))
    arrays: dict[str, Any] = {"query": q.numpy(), "key": k.numpy(), "value": v.numpy()}
    close(explain(**arrays), 0, q, k, v, lower(4), 1 / math.sqrt(2))
    # The input is float32; the computation is in float64.
    single = [matrix.float().requires_grad_() for matrix in (q, k, v)]
    trace = explain(query=single[0], key=single[1], value=single[2])
    close(trace, 0, q.float().double(), k.float().double(), v.float().double(), lower(4), 1 / math.sqrt(2))
    assert all(stage.matrix.dtype == torch.float64 and not stage.matrix.requires_grad for stage in trace.stages)


def test_heads_given_as_heads_and_fewer_key_heads():
    q, k, v = numbers(4, 3, 2), numbers(2, 3, 2, seed=1), numbers(2, 3, 5, seed=2)
    trace = explain(query=q, key=k, value=v)
    for head in range(4):
        close(trace, head, q[head], k[head // 2], v[head // 2], lower(3), 1 / math.sqrt(2))
        assert torch.equal(trace["k"].of_head(head), k[head // 2])
        assert torch.equal(trace["v"].of_head(head), v[head // 2])


def test_queries_stand_at_the_last_keys():
    q, k, v = numbers(2, 2), numbers(4, 2, seed=1), numbers(4, 2, seed=2)
    trace = explain(query=q, key=k, value=v)
    close(trace, 0, q, k, v, [[1, 1, 1, 0], [1, 1, 1, 1]], 1 / math.sqrt(2))
    assert trace.labels == ("t3", "t4")
    assert trace.key_labels == ("t1", "t2", "t3", "t4")
    assert trace["scores"].columns == trace["v"].rows == trace.key_labels


@pytest.mark.parametrize("scale", [1.0, 0.1, -2.0])
def test_a_given_scale(scale: float):
    q, k, v = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 2, seed=2)
    trace = explain(query=q, key=k, value=v, scale=scale)
    close(trace, 0, q, k, v, lower(3), scale)
    assert trace.scale == scale
    assert trace["scores"].formula == f"S = Q Kᵀ × {scale:g}"
    assert trace["scores"].latex == rf"S = QK^\top \times {scale:g}"


@pytest.mark.parametrize(
    ("mask", "visible"),
    [
        (window(2) & causal(), [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
        (prefix(1) | causal(), lower(3)),
        (full(), everyone(3, 3)),
        (~causal(), [[0, 1, 1], [0, 0, 1], [0, 0, 0]]),
        (padding([2]), [[1, 1, 0]] * 3),
        (dense(torch.zeros(3, 3, dtype=torch.bool)), [[0, 0, 0]] * 3),
    ],
    ids=repr,
)
def test_any_mask_and_rows_that_hear_nothing(mask, visible: list[list[int]]):
    q, k, v = numbers(3, 2), numbers(3, 2, seed=1), numbers(3, 2, seed=2)
    trace = explain(query=q, key=k, value=v, mask=mask)
    close(trace, 0, q, k, v, visible, 1 / math.sqrt(2))
    assert trace["mask"].formula == f"M = {mask!r}"
    assert trace.mask is mask


def test_a_mask_per_head():
    q, k, v = numbers(3, 4), numbers(3, 4, seed=1), numbers(3, 4, seed=2)
    trace = explain(query=q, key=k, value=v, num_heads=2, mask=per_head([causal(), ~causal()]))
    close(trace, 0, q[:, :2], k[:, :2], v[:, :2], lower(3), 1 / math.sqrt(2))
    close(trace, 1, q[:, 2:], k[:, 2:], v[:, 2:], [[0, 1, 1], [0, 0, 1], [0, 0, 0]], 1 / math.sqrt(2))


def test_keys_that_no_query_hears_may_be_nan():
    q, k, v = numbers(3, 2), numbers(3, 2, seed=1), numbers(3, 2, seed=2)
    broken_k, broken_v = k.clone(), v.clone()
    broken_k[2], broken_v[2] = math.nan, math.nan
    mask = causal() & padding([2])
    trace, whole = (explain(query=q, key=a, value=b, mask=mask) for a, b in ((broken_k, broken_v), (k, v)))
    assert torch.equal(trace["weights"].matrix, whole["weights"].matrix)
    assert torch.equal(trace["output"].matrix, whole["output"].matrix)
    assert trace.readings() == whole.readings()


# Layers.


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_a_layer_is_opened_up(kv_heads: int, bias: bool):
    torch.manual_seed(0)
    layer = MaskedSelfAttention(8, 4, num_kv_heads=kv_heads, bias=bias, mask=causal() & window(2), dtype=torch.float64)
    x = numbers(5, 8)
    trace = explain(layer, x)
    # From the weights of the layer, without its forward.
    q, k, v = ((x @ w.weight.T + (w.bias if bias else 0)).detach() for w in (layer.w_q, layer.w_k, layer.w_v))
    visible = [[int(j in (i - 1, i)) for j in range(5)] for i in range(5)]
    for head in range(4):
        own, shared = slice(2 * head, 2 * head + 2), head // (4 // kv_heads)
        theirs = slice(2 * shared, 2 * shared + 2)
        close(trace, head, q[:, own], k[:, theirs], v[:, theirs], visible, 1 / math.sqrt(2))
    # The layer returns the last stage of the Trace.
    assert_close(trace["projected"].matrix[0], layer(x).detach(), rtol=0, atol=1e-12)
    assert trace["q"].formula == ("Q = X W_Q + b_Q" if bias else "Q = X W_Q")
    assert trace["projected"].formula == "Y = [O₁ … Oₕ] W_O" + (" + b_O" if bias else "")


def test_a_layer_without_output_projection_ends_with_the_heads():
    layer = MaskedSelfAttention(4, 2, output=False, dtype=torch.float64)
    x = numbers(3, 4)
    trace = explain(layer, x)
    assert "projected" not in trace
    assert_close(torch.cat([*trace["output"].matrix], dim=-1), layer(x).detach())


def test_the_mask_of_a_call_narrows_the_layers_own():
    layer = MaskedSelfAttention(4, 1, dtype=torch.float64)
    x = numbers(3, 4)
    trace = explain(layer, x, mask=window(2))
    assert repr(trace.mask) == "causal() & window(2)"
    assert_close(trace["projected"].matrix[0], layer(x, mask=window(2)).detach())


def test_the_bias_of_the_scores_is_in_them_and_in_the_formula():
    layer = MaskedSelfAttention(4, 2, score_bias=alibi([0.5, 2.0]), dtype=torch.float64)
    x = numbers(3, 4)
    trace = explain(layer, x)
    for head, slope in enumerate((0.5, 2.0)):
        bias = [[-slope * abs(i - j) for j in range(3)] for i in range(3)]
        q, k, v = (trace[key].of_head(head) for key in "qkv")
        close(trace, head, q, k, v, lower(3), 1 / math.sqrt(2), bias)
    assert trace["scores"].formula == "S = Q Kᵀ / √d + B"
    assert trace["scores"].latex == r"S = QK^\top / \sqrt{d} + B"
    assert_close(trace["projected"].matrix[0], layer(x).detach())


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_of_torch_is_opened_up(batch_first: bool, bias: bool):
    torch.manual_seed(1)
    layer = nn.MultiheadAttention(8, 2, bias=bias, batch_first=batch_first, dtype=torch.float64).eval()
    x = numbers(4, 8)
    batch = x[None] if batch_first else x[:, None]
    blocked = torch.ones(4, 4, dtype=torch.bool).triu(1)
    with torch.no_grad():
        wanted = layer(batch, batch, batch, attn_mask=blocked)[0].reshape(4, 8)
        everything = layer(batch, batch, batch)[0].reshape(4, 8)
    trace = explain(layer, x)
    assert repr(trace.mask) == "causal()"
    assert_close(trace["projected"].matrix[0], wanted)
    assert_close(explain(layer, x, mask=full())["projected"].matrix[0], everything)
    with pytest.raises(
        RearviewError, match=r"^nn\.MultiheadAttention cannot be converted:\n  - it appends a key of zer"
    ):
        explain(nn.MultiheadAttention(8, 2, add_zero_attn=True), x)


def test_another_module_is_refused_with_what_to_use():
    with pytest.raises(RearviewError) as refusal:
        explain(nn.Linear(4, 4), numbers(3, 4))  # pyright: ignore[reportArgumentType]
    assert str(refusal.value) == (
        "x: expected a matrix, a MaskedSelfAttention or an nn.MultiheadAttention, got Linear. For the attention of a "
        "model use observe(model), or explain_model for a layer of a GPT or BERT."
    )


def test_dropout_is_not_in_the_weights():
    layer = MaskedSelfAttention(4, 1, dropout=0.9).train()
    assert_close(explain(layer, numbers(5, 4))["weights"].matrix.sum(-1), torch.ones(1, 5, dtype=torch.float64))


# Properties of every Trace.


@pytest.mark.parametrize("name", TRACES)
def test_rows_sum_to_one_and_forbidden_weights_are_exactly_zero(name: str):
    trace = TRACES[name]()
    weights = trace["weights"].matrix
    visible = trace.visible.expand_as(weights)
    hears = visible.any(-1)
    total = (hears | ("sinks" in trace)).double()
    assert_close(weights.sum(-1) + to_the_sink(trace), total, rtol=0, atol=1e-14)
    assert (weights[~visible] == 0).all()
    assert (weights[visible] > 0).all()
    assert_close(trace["output"].matrix, weights @ trace["v"].matrix, rtol=0, atol=1e-14)
    unmasked = trace["weights"].unmasked
    assert unmasked is not None
    total = torch.ones(unmasked.shape[:2], dtype=torch.float64)
    assert_close(unmasked.sum(-1) + to_the_sink(trace, masked=False), total, rtol=0, atol=1e-14)


@pytest.mark.parametrize(("name", "head"), HEADS)
def test_the_mask_renormalises_the_other_weights(name: str, head: int):
    trace = TRACES[name]()
    stage = trace["weights"]
    masked, unmasked, visible = stage.of_head(head), stage.of_head(head, masked=False), trace.visible_to(head)
    kept = torch.where(visible, unmasked, 0.0)
    hears = visible.any(-1)
    total = kept.sum(-1, keepdim=True) + to_the_sink(trace, masked=False)[head].unsqueeze(-1)
    assert_close(masked[hears], (kept / total)[hears], rtol=0, atol=1e-14)
    assert_close(stage.difference(head), masked - unmasked, rtol=0, atol=0)
    assert trace["scores"].difference(head) is None


@pytest.mark.parametrize("name", TRACES)
def test_the_trace_is_what_attend_computes(name: str):
    trace = TRACES[name]()
    q, k = (trace[f"{key}_turned" if f"{key}_turned" in trace else key].matrix for key in "qk")
    bias = alibi(4) if name == "a_layer" else None
    sinks = trace["sinks"].matrix.flatten() if "sinks" in trace else None
    out = attend(q[None], k[None], trace["v"].matrix[None], mask=trace.mask, scale=trace.scale, bias=bias, sinks=sinks)
    assert_close(trace["output"].matrix, out[0], rtol=0, atol=1e-12)


def test_stages_have_names():
    trace = TRACES["restaurant"]()
    assert "weights" in trace
    assert "p" not in trace
    with pytest.raises(RearviewError, match=r"stage: expected one of q, k, v, scores, .*, got 'weight'\."):
        trace["weight"]
    assert trace.labels == ("Frank", "Emma", "Daniel", "Alex")
    assert trace["q"].columns == ("street-stall", "upscale")
    assert trace["k"].columns == ("knows-street-stall", "knows-upscale")


# Errors.

X, W = numbers(3, 4), numbers(4, 4)
QKV: dict[str, Any] = {"query": X, "key": X, "value": X}
LAYER = MaskedSelfAttention(4, 2)


def call(*args: Any, **options: Any) -> Any:
    return lambda: explain(*args, **options)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        # Mixtures.
        (call(X, W, W), "x: expected x with w_q, w_k and w_v, or query, key and value, got x, w_q, w_k."),
        (
            call(X, W, W, W, query=X),
            "x: expected x with w_q, w_k and w_v, or query, key and value, got x, w_q, w_k, w_v, query.",
        ),
        (call(), "query, key, value: expected all three, or x with w_q, w_k and w_v, got none of them."),
        (call(query=X, key=X), "query, key, value: expected all three, or x with w_q, w_k and w_v, got query, key."),
        (call(LAYER), "x: expected explain(layer, x), with the weights of the layer, got a layer alone."),
        (call(LAYER, X, W), "x: expected explain(layer, x), with the weights of the layer, got further arguments."),
        (
            call(LAYER, X, num_heads=2),
            "x: expected explain(layer, x), with the weights of the layer, got further arguments.",
        ),
        # Shapes.
        (call(X[0], W, W, W), "x: expected a matrix [rows, columns], got shape [4]."),
        (call([[1.0], [1.0, 2.0]], W, W, W), "x: expected a matrix of numbers, got [[1.0], [1.0, 2.0]]."),
        (call(X, "w", W, W), "w_q: expected a matrix of numbers, got 'w'."),
        (call(torch.zeros(0, 4), W, W, W), "x: expected a matrix [rows, columns], got shape [0, 4]."),
        (call(X, W, W[:3], W), "w_k: expected 4 rows, one per column of x, got 3."),
        (call(LAYER, X[:, :3]), "x: expected 4 columns, the layer's dim, got 3."),
        (call(X, W, W, W, w_o=W[:3]), "w_o: expected 4 rows, one per column of the concatenated heads, got 3."),
        (call(X, W, W, W, num_heads=3), "w_q: expected columns that divide into 3 heads, got 4."),
        (call(X, W, W, W[:, :3], num_heads=2), "w_v: expected columns that divide into 2 heads, got 3."),
        (call(X, W, W, W, num_heads=0), "num_heads: expected an integer of at least 1, got 0."),
        (call(**QKV, num_heads=3), "query: expected columns that divide into 3 heads, got 4."),
        # Names.
        (call(X, W, W, W, labels="I love"), "labels: expected 3 labels, one per row, got 'I love'."),
        (call(X, W, W, W, labels=[1, 2, 3]), "labels: expected 3 labels, one per row, got [1, 2, 3]."),
        (call(X, W, W, W, key_labels="a b"), "key_labels: expected 3 labels, one per row, got 'a b'."),
        (
            call(query=X, key=W, value=W, labels="a b c"),
            "key_labels: expected 4 labels, one per key, got 3.",
        ),
        (call(X, W, W, W, features=["a"]), "features: expected 4 names, one per column of x, got ['a']."),
        (call(X, W, W, W, features="abcd"), "features: expected 4 names, one per column of x, got 'abcd'."),
        (
            call(X, W, W, W, value_features=["a"]),
            "value_features: expected 4 names, one per column of value, got ['a'].",
        ),
        (call(**QKV, query_features=["a"]), "query_features: expected 4 names, one per column of query, got ['a']."),
        (call(X, W, W, W, reflexives=["herself"]), "reflexives: expected 3 words, one per row, got 1."),
        # Positions, scale, mask.
        (
            call(X, W, W, W, positions="sinusodial"),
            "positions: expected 'sinusoidal', 'rotary', or a matrix [time, features], got 'sinusodial'.",
        ),
        (
            call(X, W, W, W, positions=X[:2]),
            "positions: expected a matrix of at least 3 rows and exactly 4 columns, as in X, got shape [2, 4].",
        ),
        (call(X, W, W, W, positions=[[1.0], []]), "positions: expected a matrix of numbers, got [[1.0], []]."),
        (
            call(**QKV, positions="sinusoidal"),
            "positions: expected 'rotary' when Q, K and V are given, got 'sinusoidal'.",
        ),
        (
            call(X, W[:, :3], W[:, :3], W, positions="rotary"),
            "positions: expected an even head dim for rotary positions, got 3.",
        ),
        (call(**QKV, scale=math.inf), "scale: expected a finite number, got inf."),
    ],
)
def test_invalid_arguments_are_refused(wrong: Any, message: str):
    with pytest.raises(RearviewError) as caught:
        wrong()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (call(query=X, key=X[:, :3], value=X), "key: expected head dim 4"),
        (call(query=X, key=X, value=X[:2]), "value: expected the batch, heads and time of key"),
        (call(**QKV, mask=per_head([causal(), full()])), "mask: expected a mask for 1 query heads"),
        (call(**QKV, mask=torch.ones(3, 3)), "mask: expected a Mask"),
        (call(**QKV, features=["a"] * 4), "features: expected query_features, key_features and value_features"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(wrong: Any, message: str):
    with pytest.raises(RearviewError) as caught:
        wrong()
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("head", [2, -1, True, 0.0, "0"])
def test_a_head_that_does_not_exist(head: Any, tmp_path):
    trace = TRACES["heads_of_their_own"]()
    asked = [trace.readings, trace.received, trace.remarks, trace.show, trace.to_latex]
    asked.append(lambda head: trace.save(tmp_path / "a.svg", head))
    for ask in asked:
        with pytest.raises(RearviewError) as caught:
            ask(head)
        assert str(caught.value) == f"head: expected a head from 0 to 1, got {head!r}."
    assert list(tmp_path.iterdir()) == []


def test_positions_may_be_an_array():
    x: Any = X.numpy()
    w: Any = W.numpy()
    p: Any = numpy.ones((3, 4))
    assert_close(explain(x, w, w, w, positions=p)["x_positioned"].matrix[0], X + 1.0)
    assert explain(x, w, w, w, positions=Rotary())["q_turned"].symbol == "Q'"
