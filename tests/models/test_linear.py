"""A weight read by columns gives what the usual product gives, and only for as long as it is asked to."""

import pytest
import torch
import torch.nn.functional as F

from rearview.models.linear import FEW_ROWS, MANY_STEPS, ByColumns, Linear


@pytest.mark.parametrize("rows", [0, 1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("bias", [True, False])
def test_the_product_is_the_same(rows, bias):
    layer, x = Linear(512, 1024, bias=bias), torch.randn(rows, 1, 512)
    expected = F.linear(x, layer.weight, layer.bias)
    with torch.no_grad(), ByColumns(layer, steps=100):
        assert layer.columns is not None
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)
    assert layer.columns is None
    assert [*layer.state_dict()] == (["weight", "bias"] if bias else ["weight"])


@pytest.mark.parametrize(
    "layer",
    [Linear(1024, 512), Linear(8, 16), Linear(512, 1024, dtype=torch.bfloat16)],
    ids=["wide", "small", "bfloat16"],
)
def test_others_stay_as_they_are(layer):
    with ByColumns(layer, steps=100):
        assert layer.columns is None


def test_few_steps_are_not_worth_a_copy():
    layer = Linear(512, 1024)
    with ByColumns(layer, steps=MANY_STEPS - 1):
        assert layer.columns is None
