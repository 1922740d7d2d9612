"""attend and weights: forms of input, the meaning of the options, and the messages of refusals."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rearview import (
    Mask,
    RearviewError,
    Unsupported,
    alibi,
    attend,
    causal,
    chunks,
    dense,
    documents,
    full,
    padding,
    per_head,
    prefix,
    weights,
    window,
)
from rearview.errors import BadArgument
from tests.native_kernel import NATIVE

BATCH, HEADS, TIME, DIM = 2, 4, 7, 8
ENGINES = ["auto", "reference", "sdpa", "blocks"]
engines = pytest.mark.parametrize("engine", ENGINES)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inputs(key_heads: int = HEADS, value_dim: int = DIM) -> tuple[Tensor, Tensor, Tensor]:
    return (
        draw(BATCH, HEADS, TIME, DIM, seed=1),
        draw(BATCH, key_heads, TIME, DIM, seed=2),
        draw(BATCH, key_heads, TIME, value_dim, seed=3),
    )


def by_hand(query: Tensor, key: Tensor, value: Tensor, visible: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The formula of the seeds, written out: output and log-sum-exp."""
    scores = query @ key.transpose(-1, -2) * options.get("scale", 1 / math.sqrt(query.shape[-1]))
    if "softcap" in options:
        scores = options["softcap"] * (scores / options["softcap"]).tanh()
    scores = scores + options.get("bias", 0)
    scores = scores + torch.zeros_like(scores).masked_fill(~visible, -math.inf)
    return scores.softmax(-1) @ value, scores.logsumexp(-1)


# What it computes.


@engines
def test_two_three_and_four_axes_agree(engine: str):
    query, key, value = (tensor[:, :1] for tensor in inputs(value_dim=5))
    whole, lse = attend(query, key, value, return_lse=True, engine="reference")
    assert torch.allclose(attend(query, key, value, engine=engine), whole)
    assert torch.allclose(attend(query[:, 0], key[:, 0], value[:, 0], engine=engine), whole[:, 0])
    assert torch.allclose(attend(query[1, 0], key[1, 0], value[1, 0], engine=engine), whole[1, 0])
    if engine != "sdpa":
        for take in (lambda x: x[:, 0], lambda x: x[1, 0]):
            out, found = attend(*map(take, (query, key, value)), return_lse=True, engine=engine)
            assert torch.allclose(out, take(whole))
            assert torch.allclose(found, take(lse))
    assert torch.equal(weights(query[:, 0], key[:, 0]), weights(query, key)[:, 0])
    assert torch.equal(weights(query[1, 0], key[1, 0], rows=[2]), weights(query, key)[1, 0, [2]])


@engines
def test_the_default_mask_is_causal(engine: str):
    query, key, value = inputs()
    lower = torch.ones(TIME, TIME, dtype=torch.bool).tril()
    assert torch.allclose(attend(query, key, value, engine=engine), by_hand(query, key, value, lower)[0])
    assert torch.allclose(weights(query, key) @ value, by_hand(query, key, value, lower)[0])


@engines
@pytest.mark.parametrize(
    "mask", [full(), (causal() & window(3)) | prefix(1), per_head([causal(), full(), window(2), chunks(3)])], ids=str
)
@pytest.mark.parametrize("value_dim", [1, 5, 16])
def test_values_may_have_another_dim(engine: str, mask: Mask, value_dim: int):
    query, key, value = inputs(value_dim=value_dim)
    expected, _ = by_hand(query, key, value, mask.to_bool(TIME))
    assert torch.allclose(attend(query, key, value, mask=mask, engine=engine), expected)


@pytest.mark.parametrize("shape", [(2, 0, 4), (0, 4), (2, 3, 0, 4)], ids=str)
def test_no_positions_at_all(shape: tuple[int, ...]):
    nothing = torch.zeros(shape, requires_grad=True)
    out = attend(nothing, nothing, nothing)
    assert out.shape == shape
    assert torch.autograd.grad(out.sum(), nothing)[0].shape == shape


@pytest.mark.parametrize(("batch", "queries", "keys"), [(0, 3, 3), (2, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("number", [0.5, math.inf])
def test_a_bias_of_no_positions_has_a_gradient(batch: int, queries: int, keys: int, number: float):
    query, key = torch.zeros(batch, 2, queries, 4), torch.zeros(batch, 2, keys, 4)
    bias = torch.full((1, 2, 1, 1), number, requires_grad=True)
    out = attend(query, key, key, mask=full(), bias=bias)
    assert out.shape == query.shape
    assert not out.detach().any()
    assert torch.equal(torch.autograd.grad(out.sum(), bias)[0], torch.zeros(1, 2, 1, 1))


options = pytest.mark.parametrize(
    "option",
    [{"scale": 0.25}, {"scale": -1.0}, {"softcap": 0.7}, {"softcap": 0.7, "scale": 2.0}, {"bias": draw(TIME, TIME)}],
    ids=["scale", "negative scale", "softcap", "softcap and scale", "bias"],
)


@pytest.mark.parametrize("engine", ["reference", "blocks"])
@options
def test_what_the_options_mean(engine: str, option: dict[str, Any]):
    query, key, value = inputs()
    mask = causal() & window(4)
    out, lse = attend(query, key, value, mask=mask, engine=engine, return_lse=True, **option)
    expected, expected_lse = by_hand(query, key, value, mask.to_bool(TIME), **option)
    assert torch.allclose(out, expected)
    assert torch.allclose(lse, expected_lse)
    assert torch.allclose(weights(query, key, mask=mask, **option) @ value, expected)


@engines
@pytest.mark.parametrize("q_start", [None, 2])
def test_alibi_is_a_penalty_on_the_distance(engine: str, q_start: int | None):
    query, key, value = inputs()
    query = query[:, :, :3]
    first = TIME - 3 if q_start is None else q_start
    distance = torch.tensor([[abs(first + i - j) for j in range(TIME)] for i in range(3)])
    slopes = torch.tensor([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])
    expected, _ = by_hand(query, key, value, torch.tensor(True), bias=-slopes.view(-1, 1, 1) * distance)
    out = attend(query, key, value, mask=full(), bias=alibi(HEADS), q_start=q_start, engine=engine)
    assert torch.allclose(out, expected)


@pytest.mark.parametrize(
    ("heads", "slopes"),
    [
        (1, [2.0**-8]),
        (2, [2.0**-4, 2.0**-8]),
        (3, [2.0**-4, 2.0**-8, 2.0**-2]),
        (6, [2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3]),
        ([0.5, 0.25], [0.5, 0.25]),
    ],
)
def test_the_slopes_of_alibi(heads: Any, slopes: list[float]):
    assert alibi(heads).slopes.tolist() == slopes
    assert repr(alibi(heads)) == f"alibi(<{len(slopes)} slopes>)"


@engines
@pytest.mark.parametrize("bias_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_a_bias_may_have_its_own_dtype(engine: str, bias_dtype: torch.dtype, dtype: torch.dtype):
    query, key, value = (tensor.to(dtype) for tensor in inputs())
    bias = draw(TIME, TIME).to(bias_dtype).requires_grad_()
    out = attend(query, key, value, bias=bias, engine=engine)
    lower = torch.ones(TIME, TIME, dtype=torch.bool).tril()
    expected, _ = by_hand(query.double(), key.double(), value.double(), lower, bias=bias.double())
    assert out.dtype == dtype
    assert torch.allclose(out.double(), expected, atol=8 * torch.finfo(dtype).eps)
    grad, wanted = (torch.autograd.grad(found.sum(), bias, retain_graph=True)[0] for found in (out, expected))
    assert grad.dtype == bias_dtype
    assert torch.allclose(grad.double(), wanted.double(), atol=0.05)


@pytest.mark.parametrize("engine", ["blocks", "auto"])
@pytest.mark.parametrize(
    "mask", [causal(), (causal() & window(3)) | prefix(1), causal() & padding([TIME, 3]), ~causal()], ids=str
)
def test_the_gradient_of_the_log_sum_exp(engine: str, mask: Mask):
    tensors = [tensor.requires_grad_() for tensor in inputs(key_heads=2)]
    d_out, d_lse = draw(BATCH, HEADS, TIME, DIM, seed=4), draw(BATCH, HEADS, TIME, seed=5)

    def grads(engine: str, use_out: bool) -> tuple[Tensor, ...]:
        out, lse = attend(*tensors, mask=mask, return_lse=True, engine=engine)
        heard = lse > -math.inf
        total = (lse[heard] * d_lse[heard]).sum() + ((out * d_out).sum() if use_out else 0)
        # The log-sum-exp does not depend on the values.
        return torch.autograd.grad(total, tensors, materialize_grads=True)

    for use_out in (True, False):
        for got, expected in zip(grads(engine, use_out), grads("reference", use_out), strict=True):
            assert torch.allclose(got, expected)


# Weights.


@pytest.mark.parametrize(
    "mask",
    [
        causal(),
        (causal() & window(3)) | prefix(1),
        causal() & documents([0, 0, 0, 1, 1, 2, 2]),
        causal() & padding([TIME, 4]),
        per_head([causal(), full(), window(2), chunks(3)]),
        dense(torch.ones(TIME, TIME, dtype=torch.bool).tril()),
    ],
    ids=str,
)
def test_weights_are_what_attend_uses(mask: Mask):
    query, key, value = inputs(key_heads=2)
    found = weights(query, key, mask=mask)
    assert torch.allclose(found.sum(-1), torch.ones(()).double())
    visible = mask.to_bool(TIME).expand_as(found)
    assert bool((found[~visible] == 0).all())
    assert bool((found[visible] > 0).all())
    assert torch.allclose(found @ value.repeat_interleave(2, dim=1), attend(query, key, value, mask=mask))


@pytest.mark.parametrize(
    ("rows", "indices"),
    [(0, [0]), (-1, [TIME - 1]), ([2, 0, 2], [2, 0, 2]), ([-TIME, 3], [0, 3]), (torch.tensor([1]), [1]), ([], [])],
    ids=str,
)
@pytest.mark.parametrize("bias", [None, draw(TIME, TIME), draw(1, TIME)], ids=["no bias", "bias", "bias of a row"])
def test_weights_of_chosen_rows(rows: Any, indices: list[int], bias: Tensor | None):
    query, key, _ = inputs(key_heads=2)
    mask = causal() & documents([0, 0, 0, 1, 1, 2, 2])
    assert torch.allclose(
        weights(query, key, mask=mask, rows=rows, bias=bias), weights(query, key, mask=mask, bias=bias)[:, :, indices]
    )


def test_the_weights_of_a_row_that_hears_nothing_are_zero():
    query, key, _ = inputs()
    found = weights(query, key, mask=causal() & ~prefix(2))
    assert bool((found[:, :, :2] == 0).all())
    assert torch.allclose(found[:, :, 2:].sum(-1), torch.ones(()).double())


def test_weights_are_single_precision_at_least():
    query, key, _ = inputs()
    half = weights(query.bfloat16(), key.bfloat16())
    assert half.dtype == torch.float32
    assert torch.allclose(half.double(), weights(query.bfloat16().double(), key.bfloat16().double()), atol=1e-6)


@pytest.mark.parametrize(("q_len", "k_len"), [(3, 0), (0, 3)])
def test_weights_of_nothing(q_len: int, k_len: int):
    query, key, _ = (tensor.bfloat16() for tensor in inputs())
    found = weights(query[:, :, :q_len], key[:, :, :k_len])
    assert (found.shape, found.dtype) == ((BATCH, HEADS, q_len, k_len), torch.float32)


@pytest.mark.parametrize("rows", [TIME, -TIME - 1, [0, 99], [0.5], True, "0", [[0]]], ids=str)
def test_invalid_rows(rows: Any):
    query, key, _ = inputs()
    with pytest.raises(BadArgument, match=f"^rows: expected indices of the {TIME} queries, got "):
        weights(query, key, rows=rows)


# Refusals: each names the argument, what was expected, what was given, and what to do.

q, k, v = inputs()


def call(query: Any = q, key: Any = k, value: Any = v, **options: Any) -> Callable[[], object]:
    return lambda: attend(query, key, value, **options)


FLOAT8 = torch.float8_e4m3fn
WRONG: list[tuple[Callable[[], object], str]] = [
    (call(query=[1.0]), "^query: expected a tensor, got list"),
    (call(key=None), "^key: expected a tensor, got NoneType"),
    (call(query=q[0, 0, 0]), r"^query: expected shape \[batch, heads, time, dim\] .*, got \[8\]"),
    (call(value=v[None]), r"^value: expected shape \[batch, heads, time, dim\] .*, got \[1, 2, 4, 7, 8\]"),
    (call(query=q[..., :0]), r"^query: expected shape .*, got \[2, 4, 7, 0\]"),
    (call(query=q.long()), r"^query: expected float16, bfloat16, float32 or float64, got torch\.int64"),
    (call(value=v.bool()), r"^value: expected float16, .*, got torch\.bool"),
    (
        call(key=k[0]),
        r"^query, key, value: expected the same number of axes, got query \[2, 4, 7, 8\], key \[4",
    ),
    (
        call(key=k.float()),
        r"^query, key, value: expected one dtype, got torch\.float64, torch\.float32.*Cast",
    ),
    (call(key=k.to("meta")), "^query, key, value: expected tensors on one device, got cpu, meta, cpu"),
    (call(key=k[:, :3], value=v[:, :3]), "^key: expected a number of heads that divides the query's 4, got 3. With"),
    (call(key=k[:, :0], value=v[:, :0]), "^key: expected a number of heads that divides the query's 4, got 0. With"),
    (call(key=k[:1], value=v[:1]), r"^key: expected batch 2, as the query, got 1: query \[2, 4, 7, 8\], key \[1"),
    (call(value=v[:, :, :5]), r"^value: expected the batch, heads and time of key, got .* value \[2, 4, 5, 8\]"),
    (call(value=v[:, :2]), r"^value: expected the batch, heads and time of key, got .* value \[2, 2, 7, 8\]"),
    (call(key=k[..., :5]), r"^key: expected head dim 8, as the query, got 5: query .* key \[2, 4, 7, 5\]"),
    (call(mask=None), r"^mask: expected a Mask such as causal\(\), got NoneType\. Use full\(\) for no mask"),
    (
        call(mask=torch.ones(7, 7).bool()),
        r"^mask: .*, got Tensor\. .* True means heard or blocked: use dense",
    ),
    (call(mask="causal()"), r"^mask: expected a Mask such as causal\(\), got str"),
    (
        call(mask=padding([1, 2, 3])),
        r"^mask: expected a mask for batch 2, got padding\(\[1, 2, 3\]\), made for",
    ),
    (call(mask=per_head([causal()] * 2)), r"^mask: expected a mask for 4 query heads, got per_head\(.*, made for 2"),
    (
        call(mask=documents([0, 0, 1])),
        r"^documents\(ids\): expected an id for each of the 7 positions, got 3 ids\.",
    ),
    (
        call(engine="flash"),
        "^engine: expected auto, native, hopper, decode, flex, sdpa, blocks, reference, got 'flash'",
    ),
    (call(engine=None), "^engine: expected auto, .*, got None"),
    (call(scale=math.nan), "^scale: expected a finite number, got nan"),
    (call(scale="1"), "^scale: expected a finite number, got '1'"),
    (call(scale=torch.tensor(1.0)), "^scale: expected a finite number, got tensor"),
    (call(softcap=0), "^softcap: expected a finite number above 0, got 0"),
    (call(softcap=math.inf), "^softcap: expected a finite number above 0, got inf"),
    (call(dropout=1.0), r"^dropout: expected a finite number of at least 0 and below 1, got 1\.0"),
    (call(dropout=-0.1), r"^dropout: expected a finite number of at least 0 and below 1, got -0\.1"),
    (call(dropout=True), "^dropout: expected a finite number of at least 0 and below 1, got True"),
    (call(generator=3), r"^generator: expected a torch\.Generator, got int"),
    (call(q_start=-1), "^q_start: expected an integer of at least 0, got -1"),
    (call(q_start=1.0), r"^q_start: expected an integer of at least 0, got 1\.0"),
    (call(bias=torch.zeros(7, 6)), r"^bias: expected .* broadcasts to \[2, 4, 7, 7\], or alibi.*, got \[7, 6\]"),
    (call(bias=torch.zeros(1, 2, 4, 7, 7)), r"^bias: .* broadcasts to \[2, 4, 7, 7\].*, got \[1, 2, 4, 7, 7\]"),
    (call(bias=torch.zeros(7, 7).long()), r"^bias: expected a float tensor .*, got torch\.int64\. .*mask="),
    (call(bias=torch.ones(7, 7).bool()), r"^bias: .*, got torch\.bool\. Who may be heard goes into mask="),
    (call(bias=0.5), "^bias: expected a float tensor .*, got float"),
    (call(bias=torch.zeros(7, 7, device="meta")), "^bias: expected a tensor on cpu, got meta"),
    (call(bias=torch.zeros(7, 7).to(FLOAT8)), r"^bias: expected a float tensor .*, got torch\.float8_e4m3fn"),
    (call(sinks=torch.zeros(4).to(FLOAT8)), r"^sinks: expected a float tensor \[4\]"),
    (call(sinks=torch.zeros(4, 1).to_sparse()), r"^sinks: .*, got a sparse_coo"),
    (call(lengths=torch.ones(2, 1).long().to_sparse()), r"^lengths: .*, got a sparse_coo"),
    (
        call(sinks=torch.zeros(4, device="meta")),
        r"^sinks: .*, got a float32 tensor of shape \[4\] on meta, which has no",
    ),
    (
        lambda: attend(*(x.to("meta") for x in (q, k, v)), lengths=torch.ones(2, device="meta").int()),
        "^lengths: expected integers, .* on meta, which has no values",
    ),
    (call(scale=torch.ones(2, 2)), r"^scale: expected a finite number, got a float32 tensor of shape \[2, 2\]"),
    (lambda: weights(q, k, rows=torch.zeros(2, 2).long()), r"^rows: .*, got an int64 tensor of shape \[2, 2\]"),
    (call(engine=[]), r"^engine: expected auto, .*, got \[\]"),
    (call(return_lse=1), "^return_lse: expected True or False, got 1"),
    (call(return_lse=torch.ones(2)), "^return_lse: expected True or False, got tensor"),
    (call(batch_invariant=1), "^batch_invariant: expected True or False, got 1"),
    (lambda: weights(q, k, rows=torch.tensor([1j])), "^rows: expected indices of the 7 queries"),
    (lambda: weights(q, k, rows=torch.zeros(1, device="meta").long()), "^rows: .*on meta, which has no values"),
    (call(bias=alibi(3)), "^bias: expected alibi for 4 heads, got 3 slopes"),
    (lambda: alibi(0), r"^alibi\(heads\): expected an integer of at least 1, got 0"),
    (lambda: alibi(torch.tensor([1, 2])), r"^alibi\(heads\): expected a number of heads, or constant float slopes"),
    (
        lambda: alibi(torch.ones(2, requires_grad=True)),
        r"^alibi\(heads\): .*For learned slopes pass a bias tensor: bias=-slopes",
    ),
]


@pytest.mark.parametrize(("attempt", "message"), WRONG, ids=[message for _, message in WRONG])
def test_refusals(attempt: Callable[[], object], message: str):
    with pytest.raises(RearviewError, match=message):
        attempt()


@pytest.mark.parametrize("engine", ["auto", "reference", "blocks"])
def test_shapes_without_numbers(engine: str):
    query, key, value = (tensor.to("meta") for tensor in inputs(key_heads=2, value_dim=5))
    mask = causal() & documents([0] * 3 + [1] * 4)
    out, lse = attend(query, key, value, mask=mask, engine=engine, return_lse=True)
    assert (out.shape, out.device.type) == ((BATCH, HEADS, TIME, 5), "meta")
    assert (lse.shape, lse.device.type) == ((BATCH, HEADS, TIME), "meta")
    assert weights(query, key, mask=mask).shape == (BATCH, HEADS, TIME, TIME)


@pytest.mark.parametrize("engine", ["reference", "blocks", "sdpa", NATIVE])
def test_alibi_in_float64_is_computed_in_float64(engine: str):
    x = torch.randn(1, 3, 65, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    slopes = alibi([0.3, 0.123, 0.0013])
    distance = (torch.arange(65.0).unsqueeze(1) - torch.arange(65.0)).abs().double()
    scores = x @ x.transpose(-1, -2) / math.sqrt(8) - slopes.slopes.double().view(3, 1, 1) * distance
    expected = scores.masked_fill(distance.new_ones(65, 65).triu(1).bool(), -torch.inf).softmax(-1) @ x
    got = attend(x, x, x, bias=slopes, engine=engine)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("engine", "options", "reason"),
    [
        ("sdpa", {"softcap": 1.0}, "it has no softcap"),
        ("sdpa", {"return_lse": True}, "it does not return the log-sum-exp"),
        ("sdpa", {"dropout": 0.1, "generator": torch.Generator()}, "its dropout takes no generator"),
        ("flex", {"dropout": 0.1}, "it has no dropout"),
        ("flex", {"requires_grad": True}, "FlexAttention on a CPU is forward only"),
        ("flex", {"return_lse": True}, "FlexAttention on a CPU does not return the log-sum-exp"),
        ("flex", {"dtype": torch.float64}, "FlexAttention has no float64 kernel"),
    ],
)
def test_a_named_engine_never_falls_back(engine: str, options: dict[str, Any], reason: str):
    options = dict(options)
    needs_grad, dtype = options.pop("requires_grad", False), options.pop("dtype", torch.float32)
    query, key, value = q.to(dtype, copy=True).requires_grad_(needs_grad), k.to(dtype), v.to(dtype)
    with pytest.raises(Unsupported, match=f"^engine '{engine}' cannot do this exactly:\n") as refusal:
        attend(query, key, value, engine=engine, **options)
    assert refusal.value.reasons == (reason,)
    assert str(refusal.value).endswith(
        f"  - {reason}\nengine='auto' chooses one that can; plan(...) says which and why."
    )
    # What this engine refuses, auto computes.
    assert attend(query, key, value, **options) is not None


def test_all_reasons_are_given():
    with pytest.raises(Unsupported) as refusal:
        attend(q, k, v, engine="sdpa", softcap=1.0, return_lse=True)
    assert len(refusal.value.reasons) == 2


def test_flex_needs_a_compiler_on_a_cpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unsupported, match="needs a C\\+\\+ compiler at run time, and none is on the PATH"):
        attend(q, k, v, engine="flex")
