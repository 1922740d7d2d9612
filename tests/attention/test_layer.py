"""MaskedSelfAttention: the formula with heads, its cache, its exchange with nn.MultiheadAttention."""

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rearview import (
    KeyValueCache,
    Mask,
    MaskedSelfAttention,
    Unsupported,
    alibi,
    attend,
    causal,
    chunks,
    dilated,
    documents,
    explain,
    full,
    padding,
    per_head,
    prefix,
    tree,
    window,
)
from rearview.errors import BadArgument
from rearview.masks.exchange import from_bool

BATCH, TIME, DIM = 2, 9, 12
BLOCKED = torch.ones(TIME, TIME, dtype=torch.bool).triu(1)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = draw(BATCH, TIME, DIM, seed=1)


def by_hand(layer: MaskedSelfAttention, x: Tensor, visible: Tensor) -> Tensor:
    """X -> Q, K, V -> one head at a time -> concatenated -> output."""
    group = layer.num_heads // layer.num_kv_heads
    visible = visible.expand(len(x), layer.num_heads, -1, -1)
    query, key, value = (
        (x @ linear.weight.T + (0 if linear.bias is None else linear.bias)).chunk(heads, dim=-1)
        for linear, heads in (
            (layer.w_q, layer.num_heads),
            (layer.w_k, layer.num_kv_heads),
            (layer.w_v, layer.num_kv_heads),
        )
    )
    heard = []
    for head in range(layer.num_heads):
        scores = query[head] @ key[head // group].transpose(-1, -2) / math.sqrt(layer.head_dim)
        scores = scores.masked_fill(~visible[:, head], -math.inf)
        # A row that hears nothing is 0, not NaN.
        heard.append(scores.softmax(-1).nan_to_num(0) @ value[head // group])
    out = torch.cat(heard, dim=-1)
    if layer.w_o is None:
        return out
    return out @ layer.w_o.weight.T + (0 if layer.w_o.bias is None else layer.w_o.bias)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"bias": False},
        {"num_kv_heads": 2},
        {"num_kv_heads": 1, "bias": False},
        {"head_dim": 5},
        {"value_dim": 2},
        {"head_dim": 5, "value_dim": 2, "num_kv_heads": 2},
        {"output": False},
        {"output": False, "value_dim": 7, "bias": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("mask", [causal(), (causal() & window(3)) | prefix(1), full()], ids=str)
def test_the_formula(options: dict[str, Any], mask: Mask):
    layer = MaskedSelfAttention(DIM, 4, mask=mask, dtype=torch.float64, **options)
    expected = by_hand(layer, X, mask.to_bool(TIME))
    assert torch.allclose(layer(X), expected)
    # [time, dim] is a batch of one.
    assert torch.allclose(layer(X[1]), expected[1])


@pytest.mark.parametrize("engine", ["reference", "sdpa", "blocks"])
def test_a_mask_for_each_head_and_item(engine: str):
    mask = per_head([causal(), window(2), full() & chunks(4), causal()]) & padding([TIME, 5])
    layer = MaskedSelfAttention(DIM, 4, mask=mask, engine=engine, dtype=torch.float64)
    assert torch.allclose(layer(X), by_hand(layer, X, mask.to_bool(TIME)))


def test_given_weights_are_those_of_the_formula():
    w_q, w_k, w_v, w_o = draw(3, 8, seed=1), draw(3, 4, seed=2), draw(3, 10, seed=3), draw(20, 3, seed=4)
    layer = MaskedSelfAttention(3, 4, num_kv_heads=2, w_q=w_q, w_k=w_k, w_v=w_v, w_o=w_o, dtype=torch.float64)
    assert (layer.head_dim, layer.value_dim) == (2, 5)
    x = draw(6, 3, seed=5)
    query, key, value = (x @ w for w in (w_q, w_k, w_v))
    for tensor, found in zip((query, key, value), layer.heads(x.unsqueeze(0)), strict=True):
        assert torch.allclose(found[0].transpose(0, 1).flatten(1), tensor)
    expected = by_hand(layer, x.unsqueeze(0), causal().to_bool(6))[0]
    assert torch.allclose(layer(x), expected)
    # They start without a bias, and they are copies.
    w_q.zero_()
    assert torch.allclose(layer(x), expected)
    assert {name for name, value in layer.named_parameters() if not value.any()} == {
        "w_q.bias",
        "w_k.bias",
        "w_v.bias",
        "w_o.bias",
    }


def test_the_score_bias():
    layer = MaskedSelfAttention(DIM, 4, score_bias=alibi([0.0] * 4), dtype=torch.float64)
    plain = layer(X)
    layer.score_bias = alibi(4)
    query, key, value = layer.heads(X)
    distance = (torch.arange(TIME).unsqueeze(1) - torch.arange(TIME)).abs()
    scores = query @ key.transpose(-1, -2) / math.sqrt(3) - alibi(4).slopes.view(-1, 1, 1) * distance
    heard = scores.masked_fill(BLOCKED, -math.inf).softmax(-1) @ value
    assert layer.w_o is not None
    assert torch.allclose(layer(X), layer.w_o(heard.transpose(1, 2).flatten(2)))
    assert not torch.allclose(layer(X), plain)


@pytest.mark.parametrize("own", [causal(), full()], ids=str)
@pytest.mark.parametrize(
    "extra", [documents([0] * 4 + [1] * 5), padding([TIME, 6]), full(), window(2), dilated(2)], ids=str
)
def test_the_mask_of_a_call_narrows(own: Mask, extra: Mask):
    layer = MaskedSelfAttention(DIM, 4, mask=own, dtype=torch.float64)
    assert torch.allclose(layer(X, mask=extra), by_hand(layer, X, (own & extra).to_bool(TIME)))
    assert layer.mask is own


# The cache.


@pytest.mark.parametrize("edges", [list(range(TIME + 1)), [0, 4, 5, 9], [0, 9]], ids=["steps", "chunks", "at once"])
@pytest.mark.parametrize(
    "mask",
    [causal(), causal() & window(3), (causal() & window(2)) | (causal() & prefix(2)), causal() & dilated(3)],
    ids=str,
)
@pytest.mark.parametrize(
    "extra", [None, documents([0] * 4 + [1] * 5), padding(torch.arange(TIME).expand(2, -1) > 1)], ids=str
)
def test_cached_equals_uncached(edges: list[int], mask: Mask, extra: Mask | None):
    layer = MaskedSelfAttention(DIM, 4, num_kv_heads=2, value_dim=2, mask=mask, dtype=torch.float64)
    whole = layer(X, mask=extra)
    cache = layer.new_cache(BATCH, max_len=TIME + 3)
    for start, end in itertools.pairwise(edges):
        step = layer(X[:, start:end], mask=extra, cache=cache)
        assert torch.allclose(step, whole[:, start:end])
        assert len(cache) == end


def test_a_cache_can_be_used_again():
    layer = MaskedSelfAttention(DIM, 4, dtype=torch.float64)
    cache = layer.new_cache(BATCH, max_len=TIME)
    layer(X, cache=cache)
    cache.reset()
    assert len(cache) == 0
    other = draw(BATCH, 4, DIM, seed=9)
    assert torch.allclose(layer(other, cache=cache), layer(other))


def test_a_cache_takes_its_memory_once():
    layer = MaskedSelfAttention(DIM, 4, num_kv_heads=2, value_dim=5).bfloat16()
    cache = layer.new_cache(BATCH, max_len=TIME)
    assert cache.keys.dtype == cache.values.dtype == torch.bfloat16
    assert (cache.keys.shape, cache.values.shape) == ((BATCH, 2, TIME, 3), (BATCH, 2, TIME, 5))
    where = cache.keys.data_ptr()
    for position in range(TIME):
        keys, _ = cache.append(*layer.heads(X[:, position : position + 1].bfloat16())[1:])
        assert keys.data_ptr() == where


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"max_len": TIME - 1},
            r"^cache: expected at most 8 positions, got 0 held and 9 new\. "
            r"Create the cache with a larger max_len, or reset\(\) it\.$",
        ),
        ({"batch": 3}, r"^cache: expected keys of batch x heads \[3, 4\], .*, got \[2, 4\]"),
        ({"heads": 2}, r"^cache: expected keys of batch x heads \[2, 2\], .*, got \[2, 4\]"),
        ({"dtype": torch.float32}, r"^cache: .* torch\.float32 on cpu, got .* torch\.float64 on cpu.*layer\.new_cache"),
        ({"device": "meta"}, "^cache: expected .* on meta, got .* on cpu"),
    ],
    ids=str,
)
def test_a_cache_that_does_not_fit(change: dict[str, Any], message: str):
    layer = MaskedSelfAttention(DIM, 4, dtype=torch.float64)
    options = {"batch": BATCH, "heads": 4, "max_len": TIME, "key_dim": 3, "dtype": torch.float64}
    cache = KeyValueCache(**(options | change))
    with pytest.raises(BadArgument, match=message):
        layer(X, cache=cache)
    assert len(cache) == 0


def test_a_full_cache_keeps_what_it_holds():
    layer = MaskedSelfAttention(DIM, 4, dtype=torch.float64)
    cache = layer.new_cache(BATCH, max_len=4)
    layer(X[:, :3], cache=cache)
    with pytest.raises(BadArgument, match="got 3 held and 2 new"):
        layer(X[:, 3:5], cache=cache)
    assert torch.allclose(layer(X[:, 3:4], cache=cache), layer(X[:, :4])[:, 3:])


# nn.MultiheadAttention, whose boolean masks mean the opposite.


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_from_multihead(batch_first: bool, bias: bool):
    other = nn.MultiheadAttention(DIM, 4, bias=bias, batch_first=batch_first, dtype=torch.float64)
    for parameter in other.parameters():
        nn.init.normal_(parameter)
    x = X if batch_first else X.transpose(0, 1)
    theirs = other(x, x, x, attn_mask=BLOCKED)[0]
    theirs = theirs if batch_first else theirs.transpose(0, 1)
    assert torch.allclose(MaskedSelfAttention.from_multihead(other)(X), theirs)
    brought = MaskedSelfAttention.from_multihead(other, mask=from_bool(BLOCKED, true_means="blocked"))
    assert torch.allclose(brought(X), theirs)
    # With the other polarity the same tensor would look ahead.
    assert not torch.allclose(
        MaskedSelfAttention.from_multihead(other, mask=from_bool(BLOCKED, true_means="heard"))(X), theirs
    )


def test_its_masks_of_padding_and_per_head():
    other = nn.MultiheadAttention(DIM, 4, batch_first=True, dtype=torch.float64)
    padded = torch.arange(TIME) >= torch.tensor([[TIME], [6]])
    # [batch x heads, query, key] there, [batch, heads, query, key] here.
    each = (draw(BATCH * 4, TIME, TIME) < 0.3) & ~torch.eye(TIME, dtype=torch.bool)
    layer = MaskedSelfAttention.from_multihead(other, mask=full())
    theirs = other(X, X, X, attn_mask=BLOCKED, key_padding_mask=padded)[0]
    assert torch.allclose(layer(X, mask=causal() & padding(~padded)), theirs)
    brought = from_bool(each.unflatten(0, (BATCH, 4)), true_means="blocked")
    assert torch.allclose(layer(X, mask=brought), other(X, X, X, attn_mask=each)[0])


def test_from_multihead_copies_weights_and_mode():
    other = nn.MultiheadAttention(DIM, 4, dropout=0.25, dtype=torch.float64).eval()
    layer = MaskedSelfAttention.from_multihead(other, engine="blocks")
    assert (layer.dropout, layer.training, layer.engine) == (0.25, False, "blocks")
    before = layer(X)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert torch.equal(layer(X), before)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"kdim": 5}, r"another width \(kdim, vdim\)"),
        ({"vdim": 5}, r"another width \(kdim, vdim\)"),
        ({"add_bias_kv": True}, r"a learned key and value \(add_bias_kv\)"),
        ({"add_zero_attn": True}, r"a key of zeros \(add_zero_attn\)"),
    ],
    ids=str,
)
def test_what_cannot_be_converted(options: dict[str, Any], reason: str):
    with pytest.raises(Unsupported, match=f"(?s)^nn.MultiheadAttention cannot be converted:.*{reason}"):
        MaskedSelfAttention.from_multihead(nn.MultiheadAttention(DIM, 4, **options))


# What every nn.Module has.


def test_state_dict_round_trip():
    layer, other = (MaskedSelfAttention(DIM, 4, num_kv_heads=2, dtype=torch.float64) for _ in range(2))
    assert not torch.allclose(layer(X), other(X))
    assert list(layer.state_dict()) == [f"w_{name}.{kind}" for name in "qkvo" for kind in ("weight", "bias")]
    other.load_state_dict(layer.state_dict())
    assert torch.equal(layer(X), other(X))


def test_a_deep_copy_is_independent():
    layer = MaskedSelfAttention(DIM, 4, mask=causal() & documents([0] * 4 + [1] * 5), dtype=torch.float64)
    clone = copy.deepcopy(layer)
    assert torch.equal(clone(X), layer(X))
    nn.init.zeros_(clone.w_q.weight)
    assert not torch.allclose(clone(X), layer(X))


def test_dropout_in_training_only():
    layer = MaskedSelfAttention(DIM, 4, dropout=0.5, dtype=torch.float64)
    trained = [layer(X) for _ in range(2)]
    assert not torch.allclose(*trained)
    layer.eval()
    assert torch.allclose(layer(X), by_hand(layer, X, ~BLOCKED))


def test_it_can_be_trained():
    layer = MaskedSelfAttention(DIM, 4, num_kv_heads=2, mask=causal() & window(3), dtype=torch.float64)
    layer(X).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        # A bias of the keys shifts all scores of a row alike, so it has no gradient but rounding.
        assert bool(parameter.grad.abs().max() > 1e-6) == (name != "w_k.bias")


def test_it_prints_its_mask():
    assert "num_heads=4, num_kv_heads=2, mask=causal() & window(3)" in repr(
        MaskedSelfAttention(DIM, 4, num_kv_heads=2, mask=causal() & window(3))
    )


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 1), {}, "^dim: expected an integer of at least 1, got 0"),
        ((DIM, 0), {}, "^num_heads: expected an integer of at least 1, got 0"),
        ((DIM, 5), {}, "^head_dim: expected features that divide into 5 heads, got 12"),
        ((DIM, 4), {"num_kv_heads": 3}, "^num_kv_heads: expected a number that divides num_heads = 4, got 3"),
        ((DIM, 4), {"mask": None}, r"^mask: expected a Mask such as causal\(\), got NoneType"),
        ((DIM, 4), {"mask": BLOCKED}, r"^mask: expected a Mask such as causal\(\), got Tensor"),
        ((DIM, 4), {"dropout": 1.0}, r"^dropout: expected a finite number of at least 0 and below 1, got 1\.0"),
        ((3, 1), {"w_q": draw(2, 3)}, r"^w_q: expected shape \[3, 3\] \(in, out\), got \[2, 3\]"),
        ((3, 2), {"w_q": draw(3, 5)}, "^head_dim: expected features that divide into 2 heads, got 5"),
        ((3, 1), {"w_o": draw(3, 4)}, r"^w_o: expected shape \[3, 3\] \(in, out\), got \[3, 4\]"),
        ((3, 1), {"w_o": draw(3, 3), "output": False}, r"^w_o: expected nothing when output=False, got .*\[3, 3\]"),
    ],
)
def test_invalid_layers(arguments: tuple, options: dict[str, Any], message: str):
    with pytest.raises(BadArgument, match=message):
        MaskedSelfAttention(*arguments, **options)


@pytest.mark.parametrize(
    ("x", "options", "message"),
    [
        (draw(TIME, 5), {}, r"^x: expected \[batch, time, 12\] or \[time, 12\], got \[9, 5\]"),
        (draw(1, 1, TIME, DIM), {}, r"^x: expected \[batch, time, 12\] or \[time, 12\], got \[1, 1, 9, 12\]"),
        (X, {"mask": BLOCKED}, r"^mask: expected a Mask such as padding\(...\), got Tensor"),
        (X, {"mask": padding([1, 2, 3])}, "^mask: expected a mask for batch 2, got .*, made for batch 3"),
        (X, {"mask": documents([0, 1])}, r"^documents\(ids\): expected an id for each of the 9 positions, got 2 ids"),
    ],
)
def test_invalid_calls(x: Tensor, options: dict[str, Any], message: str):
    with pytest.raises(BadArgument, match=message):
        MaskedSelfAttention(DIM, 4, dtype=torch.float64)(x, **options)


# Rotary positions.


def rotated(heads: torch.Tensor, positions: list[float], base: float) -> torch.Tensor:
    """Each pair of features (n, n + dim / 2) as a complex number, turned by position x base^(-2n / dim)."""
    half = heads.shape[-1] // 2
    rates = base ** (-torch.arange(half).double() * 2 / heads.shape[-1])
    angles = torch.tensor(positions).double().unsqueeze(-1) * rates
    numbers = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([numbers.real, numbers.imag], -1)


def test_rotary_positions_turn_queries_and_keys():
    layer = MaskedSelfAttention(DIM, 2, rotary=500.0, head_dim=4, dtype=torch.float64)
    query, key, value = layer.heads(X)
    at = list(map(float, range(TIME)))
    expected = attend(rotated(query, at, 500.0), rotated(key, at, 500.0), value)
    assert layer.w_o is not None
    torch.testing.assert_close(layer(X), layer.w_o(expected.transpose(1, 2).flatten(2)), rtol=0, atol=1e-5)
    assert not torch.allclose(layer(X), layer(X.flip(1)).flip(1))


def test_rotary_positions_go_on_after_the_cache():
    layer = MaskedSelfAttention(DIM, 2, rotary=10000.0, head_dim=4, num_kv_heads=1, dtype=torch.float64).eval()
    for options in ({}, {"block_size": 2}):
        cache = layer.new_cache(BATCH, max_len=TIME, **options)
        with torch.no_grad():
            parts = [layer(X[:, part], cache=cache) for part in (slice(0, 4), slice(4, 5), slice(5, TIME))]
            torch.testing.assert_close(torch.cat(parts, 1), layer(X))


def test_on_a_tree_each_path_has_the_positions_of_a_row_of_its_own():
    layer = MaskedSelfAttention(DIM, 2, rotary=100.0, head_dim=6, dtype=torch.float64)
    mask = tree([-1, 0, 1, 1, 3])
    together = layer(X[:, :5], mask=mask, positions=mask.positions)
    alone = layer(X[:, [0, 1, 3, 4]])
    torch.testing.assert_close(together[:, [0, 1, 3, 4]], alone)
    several = layer(X[:, :5], mask=mask, positions=mask.positions.expand(BATCH, -1))
    assert torch.equal(several, together)


def test_explain_shows_the_rotation_of_a_layer():
    layer = MaskedSelfAttention(DIM, 2, rotary=100.0, head_dim=4, dtype=torch.float64)
    trace = explain(layer, X[0])
    torch.testing.assert_close(trace["projected"].matrix[0], layer(X[0]), rtol=0, atol=1e-5)
    with pytest.raises(BadArgument, match=r"^positions: expected no rotary positions for a layer that has its own"):
        explain(layer, X[0], positions="rotary")


WRONG: dict[str, dict[str, Any]] = {"w_q": {"w_q": [[1.0]]}, "bias": {"bias": 1}, "output": {"output": "no"}}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MaskedSelfAttention(6, 2, rotary=1e4), "^rotary: expected an even head_dim, .*, got 3"),
        (lambda: MaskedSelfAttention(8, 2, rotary=0), "^rotary: expected a finite number above 0, got 0"),
        (
            lambda: MaskedSelfAttention(8, 2)(torch.zeros(3, 8), positions=torch.arange(3)),
            "^positions: expected nothing",
        ),
        (
            lambda: MaskedSelfAttention(8, 2, rotary=1e4)(torch.zeros(3, 8), positions=torch.arange(4)),
            r"^positions: expected integers \[3\] or \[1, 3\], got an int64 tensor of shape \[4\]",
        ),
        (
            lambda: MaskedSelfAttention(8, 2, rotary=1e4)(torch.zeros(3, 8), positions=torch.zeros(3)),
            r"^positions: expected integers \[3\] or \[1, 3\], got a float32",
        ),
        (lambda: MaskedSelfAttention(8, 2, **WRONG["w_q"]), r"^w_q: expected a float tensor \[in, out\], got list"),
        (lambda: MaskedSelfAttention(8, 2, **WRONG["bias"]), "^bias: expected True or False, got 1"),
        (lambda: MaskedSelfAttention(8, 2, **WRONG["output"]), "^output: expected True or False, got 'no'"),
        (
            lambda: MaskedSelfAttention.from_multihead(nn.Linear(8, 8)),  # pyright: ignore
            "^other: expected an nn.MultiheadAttention, got Linear",
        ),
        (
            lambda: MaskedSelfAttention(8, 2)(torch.zeros(3, 8).to_sparse()),
            "^x: expected a float tensor .*, got a sparse",
        ),
        (lambda: MaskedSelfAttention(8, 2)([1.0]), r"^x: expected a float tensor \[batch, time, dim\], got list"),
        (
            lambda: MaskedSelfAttention(8, 2)(torch.zeros(3, 8), cache=3),
            "^cache: expected a KeyValueCache, .*, got int",
        ),
        (
            lambda: KeyValueCache(batch=1, heads=1, max_len=1, key_dim=1, dtype=torch.int8),
            "^dtype: expected a floating",
        ),
        (
            lambda: KeyValueCache(batch=1, heads=1, max_len=1, key_dim=1, device="gpu"),
            "^device: expected a device that",
        ),
    ],
)
def test_what_a_layer_and_a_cache_refuse(make: Any, message: str):
    with pytest.raises(BadArgument, match=message):
        make()
