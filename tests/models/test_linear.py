"""The product in pieces gives the result of the usual product."""

import pytest
import torch
import torch.nn.functional as F

from rearview.models.linear import FEW_ROWS, Linear


@pytest.fixture
def threads():
    """Sets the number of threads, and restores it after the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("rows", [0, 1, FEW_ROWS, FEW_ROWS + 1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_result_is_the_same(threads, rows: int, bias: bool, count: int):
    threads(count)
    # 1024 rows cannot be split into three pieces, so there are two.
    layer, x = Linear(512, 1024, bias=bias), torch.randn(rows, 1, 512)
    expected = F.linear(x, layer.weight, layer.bias)
    with torch.no_grad():
        assert layer._pieces(x) == (min(count, 2) if 0 < rows <= FEW_ROWS else 1)
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [(Linear(8, 16), torch.float32), (Linear(512, 1024, dtype=torch.bfloat16), torch.bfloat16)],
    ids=["small", "bfloat16"],
)
def test_other_layers_use_the_usual_product(threads, layer: Linear, dtype: torch.dtype):
    threads(2)
    x = torch.randn(1, 1, layer.in_features, dtype=dtype)
    with torch.no_grad():
        assert layer._pieces(x) == 1
        assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))


def test_training_uses_the_usual_product(threads):
    threads(2)
    layer, x = Linear(512, 1024), torch.randn(1, 1, 512)
    assert layer._pieces(x) == 1
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
