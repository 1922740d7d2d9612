"""Linear layers and activation functions of the kernel: the right numbers, and bits that depend on the row alone."""

import pytest
import torch
import torch.nn.functional as F

from rearview.attention.engines.native import library, rows
from rearview.errors import Unsupported
from tests.native_kernel import needs_native

pytestmark = needs_native

EXACT = {
    "relu": F.relu,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture(params=library.isas())
def isa(request: pytest.FixtureRequest):
    library.force_isa(request.param)
    yield request.param
    library.force_isa(None)


@pytest.mark.parametrize("name", rows.FUNCTIONS)
def test_activations_are_exact_to_rounding(isa: str, name: str):
    x = torch.cat([torch.linspace(-12, 12, 4001), torch.tensor([-100.0, 100.0, 0.0, -0.0, 1e-30, torch.nan])])
    got, right = rows.activation(x, name).double(), EXACT[name](x.double())
    torch.testing.assert_close(got, right, rtol=5e-7, atol=2e-8, equal_nan=True)


@pytest.mark.parametrize(
    ("count", "depth", "outs"), [(1, 1, 1), (3, 7, 5), (65, 33, 100), (70, 256, 97), (2, 0, 3), (0, 4, 3)]
)
def test_a_linear_layer_has_the_right_numbers(isa: str, count: int, depth: int, outs: int):
    x, weight, bias = torch.randn(2, count, depth), torch.randn(outs, depth), torch.randn(outs)
    for each in (bias, None):
        got = rows.linear(x, weight, each)
        right = F.linear(x.double(), weight.double(), None if each is None else each.double())
        assert got.shape == (2, count, outs)
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=1e-5)


def test_the_memory_of_the_inputs_does_not_matter(isa: str):
    x, weight, bias = torch.randn(9, 40), torch.randn(50, 40), torch.randn(50)
    expected = rows.linear(x, weight, bias)
    odd_weight = torch.randn(50, 43)[:, 1:41]
    odd_weight.copy_(weight)
    across = x.T.contiguous().T
    assert torch.equal(rows.linear(across, odd_weight, bias.repeat_interleave(2)[::2]), expected)
    assert torch.equal(rows.linear(x, weight.T.contiguous().T, bias), expected)


def test_what_cannot_be_computed_is_refused(monkeypatch: pytest.MonkeyPatch):
    x, weight = torch.randn(2, 3), torch.randn(4, 3, requires_grad=True)
    with pytest.raises(Unsupported, match=r"it has no gradients; use it within torch\.no_grad"):
        rows.linear(x, weight, None)
    with torch.no_grad():
        assert rows.linear(x, weight, None).shape == (2, 4)
    with pytest.raises(Unsupported, match=r"computes float32 only, and the tensors are bfloat16"):
        rows.activation(x.bfloat16(), "relu")
    with pytest.raises(Unsupported, match=r"it runs on CPUs only, and the tensors are on meta"):
        rows.activation(x.to("meta"), "relu")
    monkeypatch.setattr(library, "MISSING", "its library is not in this installation")
    with pytest.raises(Unsupported, match="its library is not in this installation"):
        rows.activation(x, "relu")
