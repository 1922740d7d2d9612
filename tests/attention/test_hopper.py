"""The engine for Hopper GPUs: what the grid does not ask, on such a GPU; elsewhere, that it refuses in a sentence."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from torch import Tensor

from rearview import Mask, Unsupported, alibi, attend, causal, dilated, documents, padding, plan, prefix, window
from rearview.attention.call import Call
from rearview.attention.engines import hopper
from rearview.attention.engines.hopper.layout import is_expressible
from rearview.attention.engines.hopper.tiling import Reach, Tiling, padded_dim
from tests.attention.emulated_gluon import kept_factor

HAS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
on_hopper = pytest.mark.skipif(not HAS_HOPPER, reason="needs a Hopper GPU")
LENGTH = 300
# Of ||got - expected|| / ||expected||, from rounding the weights and the answer.
CLOSE = {torch.bfloat16: 6e-3, torch.float16: 1e-3}

MASKS: dict[str, Mask] = {
    "one range": causal() & window(70),
    "two ranges": (causal() & window(70)) | (causal() & prefix(3)),
    "bits": causal() & dilated(3),
}


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to("cuda", dtype)


def difference(got: Tensor, expected: Tensor) -> float:
    got, expected = got.detach().double(), expected.detach().double()
    assert bool(got.isfinite().all())
    return float((got - expected).norm() / expected.norm().clamp(min=1e-9))


def assert_same(query: Tensor, key: Tensor, value: Tensor, *, mask: Mask, **options) -> None:
    """Output, log-sum-exp and the gradients of both, against the definition in float64."""
    close = CLOSE[query.dtype]
    sinks = options.pop("sinks", None)
    inputs = [query, key, value] + ([] if sinks is None else [sinks])
    inputs = [each.detach().requires_grad_() for each in inputs]
    upcast = [each.detach().double().requires_grad_() for each in inputs]
    bias = options.get("bias")
    wide = options | ({"bias": bias.double()} if isinstance(bias, Tensor) else {})
    own = [{"sinks": each[3]} if sinks is not None else {} for each in (inputs, upcast)]
    out, lse = attend(*inputs[:3], mask=mask, engine="hopper", return_lse=True, **options, **own[0])
    expected, expected_lse = attend(*upcast[:3], mask=mask, engine="reference", return_lse=True, **wide, **own[1])
    heard = expected_lse.isfinite()
    assert torch.equal(lse.isfinite(), heard)
    assert difference(out, expected) < close
    torch.testing.assert_close(lse[heard].double(), expected_lse[heard], rtol=1e-4, atol=1e-4)
    d_out, d_lse = torch.randn_like(out), torch.randn_like(lse).masked_fill(~heard, 0)
    got = torch.autograd.grad([out, lse], inputs, [d_out, d_lse])
    finite = expected_lse.masked_fill(~heard, 0)
    wanted = torch.autograd.grad([expected, finite], upcast, [d_out.double(), d_lse.double()])
    for grad, want in zip(got, wanted, strict=True):
        assert difference(grad, want) < 2 * close


@pytest.fixture(params=[False, True], ids=["fused", "deterministic"])
def deterministic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    torch.use_deterministic_algorithms(request.param)
    yield request.param
    torch.use_deterministic_algorithms(False)


@on_hopper
@pytest.mark.parametrize(
    "dim", [(64, 64), (128, 128), (16, 16), (80, 80), (33, 33), (128, 64), (64, 128), (256, 256)], ids=str
)
@pytest.mark.parametrize("mask", MASKS)
def test_head_dims(dim: tuple[int, int], mask: str, deterministic: bool):
    dims, value_dim = dim
    query, key, value = (draw(2, heads, LENGTH, d, seed=d) for heads, d in ((4, dims), (2, dims), (2, value_dim)))
    assert_same(query, key, value, mask=MASKS[mask])


@on_hopper
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "options",
    [
        {"scale": -0.3},
        {"scale": 0.0},
        {"softcap": 1.5},
        {"alibi": True},
        {"bias": (2, 1, LENGTH, LENGTH)},
        {"bias": (1, 4, 1, LENGTH)},
        {"sinks": True},
        {"softcap": 1.5, "alibi": True, "scale": 2.0, "sinks": True},
    ],
    ids=str,
)
def test_options(options: dict, dtype: torch.dtype):
    options = dict(options)
    if options.pop("alibi", False):
        options["bias"] = alibi(4)
    elif "bias" in options:
        options["bias"] = draw(*options["bias"], dtype=torch.float32, seed=4)
    if "sinks" in options:
        options["sinks"] = draw(4, dtype=torch.float32, seed=5)
    query, key, value = (draw(2, heads, LENGTH, 64, dtype=dtype, seed=heads) for heads in (4, 2, 2))
    for mask in (MASKS["two ranges"], causal() & padding([LENGTH - 9, LENGTH])):
        assert_same(query, key, value, mask=mask, **options)


@on_hopper
@pytest.mark.parametrize(("q_len", "k_len", "q_start"), [(1, 1, None), (70, 300, None), (70, 300, 20), (300, 70, None)])
def test_lengths_and_positions(q_len: int, k_len: int, q_start: int | None):
    query, key, value = draw(2, 4, q_len, 64), draw(2, 4, k_len, 64, seed=1), draw(2, 4, k_len, 64, seed=2)
    assert_same(query, key, value, mask=causal() & window(90), q_start=q_start)


@on_hopper
def test_strides_are_read_where_they_are(deterministic: bool):
    # As a projection leaves them; parts of one projection; heads that are repeated; rows that TMA cannot express.
    packed = draw(2, LENGTH, 3, 4, 64).permute(2, 0, 3, 1, 4)
    assert all(is_expressible(each) for each in packed)
    assert_same(packed[0], packed[1], packed[2], mask=causal())
    by_time = [draw(2, LENGTH, 4, 64, seed=seed).transpose(1, 2) for seed in range(3)]
    assert_same(*by_time, mask=causal())
    out = attend(*by_time, engine="hopper")
    assert out.stride() == by_time[0].stride()
    expanded = draw(2, 1, LENGTH, 64).expand(-1, 4, -1, -1)
    odd = draw(2, 4, LENGTH + 1, 65)[:, :, 1:, 1:]
    assert not is_expressible(expanded)
    assert not is_expressible(odd)
    assert_same(expanded, odd, by_time[2], mask=causal())


@on_hopper
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("mask", MASKS)
def test_dropout_is_that_of_the_cpu_kernel(dim: int, mask: str):
    query, key, value = (draw(2, 4, LENGTH, dim, seed=seed).requires_grad_() for seed in range(3))
    out = attend(
        query, key, value, mask=MASKS[mask], engine="hopper", dropout=0.2, generator=torch.Generator().manual_seed(5)
    )
    upcast = [each.detach().double().requires_grad_() for each in (query, key, value)]
    seed = int(torch.randint(2**48, (), generator=torch.Generator().manual_seed(5)))
    scores = (upcast[0] @ upcast[1].mT) / math.sqrt(dim)
    visible = Call.of(query, key, value, mask=MASKS[mask]).visible()
    shares = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    expected = (shares * kept(seed, 2 * 4 * LENGTH, LENGTH, 0.2).view(2, 4, LENGTH, LENGTH)) @ upcast[2]
    assert difference(out, expected) < CLOSE[torch.bfloat16]
    d_out = torch.randn_like(out)
    got = torch.autograd.grad(out, (query, key, value), d_out)
    wanted = torch.autograd.grad(expected, upcast, d_out.double())
    for grad, want in zip(got, wanted, strict=True):
        assert difference(grad, want) < 2 * CLOSE[torch.bfloat16]


def kept(seed: int, rows: int, keys: int, dropout: float) -> Tensor:
    """The factors of native/src/scores.hpp."""
    limit = int(dropout * 16777216.0)
    row, key = torch.arange(rows).unsqueeze(-1), torch.arange(keys)
    factors = kept_factor(row, key, seed & 0xFFFFFFFF, seed >> 32, limit, 1.0)
    return (factors.double() / (1 - dropout)).to("cuda")


@on_hopper
@pytest.mark.parametrize("mask", MASKS)
def test_the_same_call_gives_the_same_bits(mask: str):
    """Forward and the gradients of keys and values always; the gradient of queries where PyTorch is asked for it."""
    query, key, value = (draw(2, 4, 2000, 64, seed=seed).requires_grad_() for seed in range(3))
    d_out = draw(2, 4, 2000, 64, seed=3)
    torch.use_deterministic_algorithms(True)
    runs = []
    for _ in range(3):
        out = attend(query, key, value, mask=MASKS[mask], engine="hopper")
        runs.append((out, *torch.autograd.grad(out, (query, key, value), d_out)))
    torch.use_deterministic_algorithms(False)
    assert all(torch.equal(one, other) for run in runs[1:] for one, other in zip(run, runs[0], strict=True))


@on_hopper
@pytest.mark.parametrize("dim", [64, 128])
def test_many_tiles_for_each_program(dim: int, deterministic: bool):
    """At a length where every program computes many tiles: races are seen nowhere else."""
    length, heads = 8192, 16
    mask = causal() & documents(torch.arange(length) // 3000)
    query, key, value, d_out = (draw(1, heads, length, dim, seed=seed) for seed in range(4))
    inputs = [each.requires_grad_() for each in (query, key, value)]
    out = attend(*inputs, mask=mask, engine="hopper")
    got = torch.autograd.grad(out, inputs, d_out)
    for head in (0, heads - 1):
        upcast = [each[:, head : head + 1].detach().float().requires_grad_() for each in inputs]
        expected = attend(*upcast, mask=mask, engine="reference")
        wanted = torch.autograd.grad(expected, upcast, d_out[:, head : head + 1].float())
        for grad, want in zip((out, *got), (expected, *wanted), strict=True):
            assert difference(grad[:, head : head + 1], want) < 2 * CLOSE[torch.bfloat16]


@on_hopper
# The compiler of torch uses torch.jit itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.parametrize("mask", [causal() & documents(torch.arange(LENGTH) // 50), MASKS["two ranges"]], ids=repr)
def test_a_compiled_graph_gives_the_same_bits(mask: Mask):
    query, key, value = (draw(2, 4, LENGTH, 64, seed=seed).requires_grad_() for seed in range(3))
    torch.use_deterministic_algorithms(True)

    def layer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attend(query * 1.0, key, value, mask=mask, engine="hopper")

    d_out = draw(2, 4, LENGTH, 64, seed=3)
    got, expected = torch.compile(layer, fullgraph=True)(query, key, value), layer(query, key, value)
    assert torch.equal(got, expected)
    grads = torch.autograd.grad(got, (query, key, value), d_out)
    wanted = torch.autograd.grad(expected, (query, key, value), d_out)
    torch.use_deterministic_algorithms(False)
    assert all(torch.equal(grad, want) for grad, want in zip(grads, wanted, strict=True))


@on_hopper
def test_a_cuda_graph_gives_the_same_bits():
    query, key, value = (draw(2, 4, LENGTH, 64, seed=seed) for seed in range(3))
    mask, graph = causal() & window(40), torch.cuda.CUDAGraph()
    expected = attend(query, key, value, mask=mask, engine="hopper")
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        out = attend(query, key, value, mask=mask, engine="hopper")
    for _ in range(3):
        out.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


@pytest.mark.skipif(HAS_HOPPER, reason="here it computes")
def test_elsewhere_it_refuses():
    x = torch.zeros(1, 1, 4, 8)
    with pytest.raises(Unsupported) as refusal:
        attend(x, x, x, engine="hopper")
    assert str(refusal.value) == (
        "engine 'hopper' cannot do this exactly:\n"
        "  - its kernels are for NVIDIA Hopper GPUs (H100, H200), and the tensors are on cpu\n"
        "engine='auto' chooses one that can; plan(...) says which and why."
    )
    assert plan(x, x, x).engine != "hopper"


def test_what_it_refuses_on_a_hopper_gpu(monkeypatch: pytest.MonkeyPatch):
    """Each refusal by itself, wherever the tests run: the device is the only thing that is not there."""
    monkeypatch.setattr(hopper, "_obstacle", lambda device: None)
    x = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)

    def reasons(query: Tensor = x, **options) -> list[str]:
        return hopper.refusals(Call.of(query, query, query, **options))

    assert reasons() == []
    assert reasons(x.float()) == ["its kernels are for bfloat16 and float16, and the tensors are float32"]
    assert reasons(x.new_zeros(1, 2, 4, 264)) == ["its head dims go up to 256"]
    bias = torch.zeros(1, 1, 4, 4, requires_grad=True)
    assert reasons(bias=bias) == ["it has no gradient of a bias"]
    assert reasons(bias=bias.detach()) == []
    assert reasons(batch_invariant=True, dropout=0.1) == ["what its dropout drops depends on the place in the batch"]
    monkeypatch.setattr(hopper, "MOST_BITS", 100)
    assert reasons(mask=dilated(2)) == ["one bit per pair of this mask would take 16 B"]
    assert reasons(mask=causal()) == []


def test_memory():
    x = torch.zeros(1, 2, 64, 8, dtype=torch.bfloat16)
    assert hopper.memory(Call.of(x, x, x)) == 2 * 64 * 4
    assert hopper.memory(Call.of(x, x, x, mask=dilated(2))) == 2 * 64 * 4 + 64 * 64 // 8
    assert hopper.memory(Call.of(x.requires_grad_(), x, x)) == 2 * 64 * 4 * 3 + 2 * 64 * 64 * 4


def test_tilings_fit_the_shared_memory():
    for dim, value_dim in ((64, 64), (128, 128), (256, 256), (256, 64), (64, 256), (128, 64)):
        for reach in get_args(Reach):
            tiling = Tiling.of(dim, value_dim, reach=reach)
            both = 2 * (padded_dim(dim) + padded_dim(value_dim))
            assert (tiling.consumers * 64 + tiling.stages * tiling.width) * both < 227 << 10
            assert (2 * 64 + tiling.gradient_stages * tiling.gradient_width) * both < 227 << 10
            assert (tiling.key_stages * 64 + 128) * both < 227 << 10
