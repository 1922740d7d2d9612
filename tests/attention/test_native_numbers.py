"""Scores so large that one key takes everything: the kernel must say 1 and 0 there, forward and backward."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rearview import attend, causal
from rearview.attention.engines import native
from tests.native_kernel import needs_native

pytestmark = needs_native

TIME = 40


@pytest.fixture(params=native.isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    native.force_isa(request.param)
    yield request.param
    native.force_isa(None)


def inputs(size: float, q_len: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    lengths, sizes = (q_len, TIME, TIME), (size, size, 1.0)
    return [(torch.randn(1, 2, length, 16, generator=generator) * each).to(dtype).requires_grad_()
            for length, each in zip(lengths, sizes, strict=True)]  # fmt: skip


@pytest.mark.parametrize("size", [300.0, 1e3, 3e4, 1e7, 1e15])
@pytest.mark.parametrize("q_len", [TIME, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_one_key_takes_everything(isa: str, size: float, q_len: int, dtype: torch.dtype):
    tensors = inputs(size, q_len, dtype)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    out, lse = attend(*tensors, engine="native", return_lse=True)
    expected, expected_lse = attend(*exact, engine="reference", return_lse=True)
    precision = 0.01 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(out.double(), expected, rtol=precision, atol=precision)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=0)
    if q_len == 1:
        # One query is summed in another order than its gradient, and of such scores rounding is all that is left.
        return
    d_value = torch.autograd.grad(out.sum(), tensors[2])[0]
    torch.testing.assert_close(
        d_value.double(), torch.autograd.grad(expected.sum(), exact[2])[0], rtol=0, atol=precision
    )


def test_the_bits_of_a_row_do_not_depend_on_how_large_others_are(isa: str):
    query, key, value = (tensor.detach() for tensor in inputs(1.0, TIME, torch.float32))
    louder = query.clone()
    louder[:, :, TIME // 2 :] *= 1e6
    quiet = [each[:, :, : TIME // 2] for each in answers(query, key, value)]
    loud = [each[:, :, : TIME // 2] for each in answers(louder, key, value)]
    assert all(torch.equal(one, other) for one, other in zip(quiet, loud, strict=True))


def answers(query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
    """The output, the log-sum-exp and the gradient of the query."""
    query = query.clone().requires_grad_()
    out, lse = attend(query, key, value, mask=causal(), engine="native", return_lse=True)
    return [out.detach(), lse.detach(), torch.autograd.grad(out.square().sum(), query)[0]]


@pytest.mark.parametrize("size", [50.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("option", [{}, {"scale": 2.0, "softcap": 1e5}])
def test_a_forbidden_key_far_above_those_heard_has_no_effect(isa: str, size: float, dtype: torch.dtype, option: dict):
    # Backward computes 2^(score - log-sum-exp) of forbidden keys of a tile as well: beyond the largest number here.
    def gradients(strength: float) -> list[Tensor]:
        query, key, value = (tensor.detach() for tensor in inputs(1.0, TIME, dtype))
        key[:, :, -1] = query.sign()[:, :, 5] * strength
        query[:, :, -1] = 0  # the only query that hears this key
        tensors = [each.clone().requires_grad_() for each in (query, key, value)]
        out = attend(*tensors, mask=causal(), engine="native", **option)
        return list(torch.autograd.grad(out.square().sum(), tensors))

    for loud, quiet in zip(gradients(size * 20), gradients(0.0), strict=True):
        assert torch.equal(loud[:, :, :-1], quiet[:, :, :-1])
