"""Sinks: logits that take part in every softmax and belong to no key, against the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rearview import Unsupported, attend, causal, full, padding, plan, window
from rearview.attention import statistics, weights
from tests.native_kernel import NATIVE

SINKS = torch.tensor([-torch.inf, -1.0, 0.5, 4.0], dtype=torch.float64)
# The second query of the second mask hears nothing.
MASKS = {"causal": causal(), "a row that hears nothing": full() & padding([3, 0]), "window": causal() & window(2)}
engines = pytest.mark.parametrize("engine", ["auto", "reference", "blocks", NATIVE])


def inputs(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    make = torch.Generator().manual_seed(7)
    shapes = ((2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 8))
    return [torch.randn(shape, generator=make, dtype=torch.float64).to(dtype).requires_grad_() for shape in shapes]


def definition(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor, mask) -> tuple[Tensor, Tensor, Tensor]:
    """Output, log-sum-exp and weights with one more column in the softmax, which has no value."""
    key, value = (x.repeat_interleave(2, dim=1) for x in (key, value))
    scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(~mask.to_bool(5), -torch.inf)
    sink = sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    every = torch.cat([scores, sink], -1)
    top = every.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    exponentials = (every - top).exp()
    total = exponentials.sum(-1, keepdim=True)
    share = exponentials / total.where(total > 0, 1)
    lse = (total.where(total > 0, 1).log() + top).where(total > 0, -torch.inf)
    return share[..., :-1] @ value, lse.squeeze(-1), share[..., :-1]


@engines
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_output_and_gradients(engine: str, mask):
    query, key, value = inputs()
    sinks = SINKS.clone().requires_grad_()
    out, lse = attend(query, key, value, mask=mask, sinks=sinks, engine=engine, return_lse=True)
    expected, expected_lse, expected_weights = definition(query, key, value, sinks, mask)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(lse, expected_lse, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(weights(query, key, mask=mask, sinks=sinks), expected_weights, rtol=1e-12, atol=1e-12)
    heard = expected_lse != -torch.inf
    both = zip(
        torch.autograd.grad(out.square().sum() + lse[heard].sum(), (query, key, value, sinks)),
        torch.autograd.grad(expected.square().sum() + expected_lse[heard].sum(), (query, key, value, sinks)),
        strict=True,
    )
    for got, same in both:
        assert got.isfinite().all()
        torch.testing.assert_close(got, same, rtol=1e-9, atol=1e-12)
    assert torch.equal(attend(query, key, value, mask=mask, sinks=sinks, engine=engine), out)


@engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_dtypes(engine: str, dtype: torch.dtype):
    query, key, value = inputs(dtype)
    out = attend(query, key, value, sinks=SINKS.float(), engine=engine)
    assert out.dtype == dtype
    expected, _, _ = definition(query.double(), key.double(), value.double(), SINKS, causal())
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=2e-6 if dtype == torch.float32 else 2e-2)


def test_statistics_include_the_sinks_as_attend_does():
    query, key, value = (x.detach() for x in inputs())
    _, lse = attend(query, key, value, sinks=SINKS, return_lse=True)
    torch.testing.assert_close(statistics(query, key, sinks=SINKS).lse, lse, rtol=1e-12, atol=1e-12)
    nothing = key[:, :, :0]
    _, lse = attend(query, nothing, nothing, mask=full(), sinks=SINKS, return_lse=True)
    assert torch.equal(statistics(query, nothing, mask=full(), sinks=SINKS).lse, lse)


def test_no_sinks_and_sinks_of_minus_infinity_are_the_same():
    query, key, value = inputs()
    none = torch.full((4,), -torch.inf, dtype=torch.float64)
    assert torch.equal(attend(query, key, value, sinks=none), attend(query, key, value))


def test_rows_that_hear_nothing():
    query, key, value = (torch.randn(1, 4, length, 8, dtype=torch.float64) for length in (2, 0, 0))
    out, lse = attend(query, key, value, sinks=SINKS, return_lse=True)
    assert torch.equal(out, torch.zeros(1, 4, 2, 8, dtype=torch.float64))
    assert torch.equal(lse, SINKS.view(1, 4, 1).expand(1, 4, 2))


def test_an_engine_without_a_log_sum_exp_refuses_sinks():
    query, key, value = (x.detach() for x in inputs(torch.float32))
    with pytest.raises(
        Unsupported, match="engine 'sdpa' cannot do this exactly:\n  - it does not return the log-sum-exp"
    ):
        attend(query, key, value, sinks=SINKS, engine="sdpa")
    assert "log-sum-exp" in plan(query, key, value, sinks=SINKS).not_taken["sdpa"]


@engines
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_gradient_of_the_sinks_alone(engine: str, dropout: float):
    query, key, value = (x.detach() for x in inputs())
    sinks = SINKS.clone().requires_grad_()

    def loss(sinks: Tensor) -> Tensor:
        drawn = torch.Generator().manual_seed(3)
        out = attend(query, key, value, sinks=sinks, dropout=dropout, generator=drawn, engine=engine)
        return (out * torch.arange(8)).sum()

    (got,) = torch.autograd.grad(loss(sinks), sinks)
    assert got[0] == 0
    for head in (1, 2, 3):
        step = torch.zeros(4, dtype=torch.float64).index_fill(0, torch.tensor([head]), 1e-5)
        slope = (loss(SINKS + step) - loss(SINKS - step)) / 2e-5
        torch.testing.assert_close(got[head], slope, rtol=1e-6, atol=1e-6)


@engines
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_gradients_in_other_dtypes(engine: str, dtype: torch.dtype):
    query, key, value = inputs(dtype)
    q, k, v = upcast = [x.detach().double().requires_grad_() for x in (query, key, value)]
    sinks, exact = SINKS.float().requires_grad_(), SINKS.clone().requires_grad_()
    out, expected = attend(query, key, value, sinks=sinks, engine=engine), definition(q, k, v, exact, causal())[0]
    got = torch.autograd.grad(out.float().sum(), (query, key, value, sinks))
    wanted = torch.autograd.grad(expected.sum(), (*upcast, exact))
    for grad, want in zip(got, wanted, strict=True):
        limit = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(grad.double(), want, rtol=0, atol=limit * float(want.abs().max()))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="FlexAttention has a log-sum-exp on GPUs only")
@pytest.mark.parametrize("engine", ["flex", "blocks", "reference"])
def test_on_a_gpu(engine: str):
    query, key, value = (x.detach().float().repeat(1, 1, 40, 2).cuda().requires_grad_() for x in inputs())
    sinks = SINKS.float().cuda().requires_grad_()
    found = []
    for name, tensors in ((engine, (query, key, value)), ("reference", [x.double() for x in (query, key, value)])):
        out, lse = attend(*tensors, sinks=sinks.to(tensors[0].dtype), engine=name, return_lse=True)
        loss = out.square().sum() + lse[:, 1:].sum()
        found.append((out, lse, *torch.autograd.grad(loss, (query, key, value, sinks))))
    for got, expected in zip(*found, strict=True):
        limit = 1e-4 * float(expected.abs().max())
        torch.testing.assert_close(got.double(), expected.double(), rtol=0, atol=limit)


@pytest.mark.parametrize("engine", ["reference", "blocks", NATIVE])
def test_gradients_of_gradients(engine: str):
    query, key, value = (x.detach()[:1].requires_grad_() for x in inputs())
    sinks = SINKS[1:].repeat(2)[:4].clone().requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, s: attend(q, k, v, sinks=s, engine=engine), (query, key, value, sinks), fast_mode=True
    )


@pytest.mark.parametrize("engine", ["reference", "blocks", NATIVE])
def test_vmap(engine: str):
    query, key, value = (torch.stack([x.detach()] * 3) for x in inputs())
    got = torch.func.vmap(lambda q, k, v: attend(q, k, v, sinks=SINKS, engine=engine))(query, key, value)
    torch.testing.assert_close(got[1], attend(query[1], key[1], value[1], sinks=SINKS), rtol=1e-12, atol=1e-12)


def test_in_a_compiled_graph():
    query, key, value = (x.detach() for x in inputs(torch.float32))
    run = torch.compile(lambda q, k, v, s: attend(q, k, v, sinks=s), backend="eager", fullgraph=True)
    got = run(query, key, value, SINKS.float())
    torch.testing.assert_close(got, attend(query, key, value, sinks=SINKS.float()), rtol=0, atol=1e-6)
    leaves = [x.requires_grad_() for x in (query, key, value, SINKS.float())]
    grads = torch.autograd.grad(run(*leaves).square().sum(), leaves)
    wanted = torch.autograd.grad(attend(*leaves[:3], sinks=leaves[3]).square().sum(), leaves)
    for grad, want in zip(grads, wanted, strict=True):
        torch.testing.assert_close(grad, want, rtol=1e-4, atol=1e-5)
