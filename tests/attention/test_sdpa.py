"""What PyTorch's attention does with is_causal, and what the engine makes of it."""

import pytest
import torch
from torch import Tensor

from rearview import Unsupported, attend

DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def draw(dtype: torch.dtype, *dims: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(4)
    return [torch.randn(1, 2, 40, dim, generator=generator).to(dtype) for dim in dims]


def turned(tensor: Tensor) -> Tensor:
    """The same numbers, with those of a row far from each other in memory."""
    return torch.stack([tensor] * 3, -1)[..., 1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dim", [1, 8])
@pytest.mark.parametrize("times", [1, 2], ids=["the usual way", "repeated"])
def test_hidden_numbers_change_nothing_in_any_layout(dtype: torch.dtype, dim: int, times: int):
    query, key, value = draw(dtype, dim, dim, dim)
    huge = key.clone()
    huge[:, :, 21:] = torch.finfo(dtype).max
    expected = attend(query, key, value, engine="sdpa")[:, :, :21]
    for _ in range(times):
        got = attend(turned(query), turned(huge), turned(value), engine="sdpa")
        assert torch.equal(got[:, :, :21], expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("value_dim", "dropout"), [(5, 0.0), (8, 0.5)])
def test_where_torch_adds_the_mask_large_numbers_are_refused(dtype: torch.dtype, value_dim: int, dropout: float):
    query, key, value = draw(dtype, 8, 8, value_dim)
    for _ in range(2):
        assert bool(attend(query, key, value, dropout=dropout, engine="sdpa").isfinite().all())
    key[:, :, 21:] = torch.finfo(dtype).max
    with pytest.raises(Unsupported, match="can overflow to inf at keys that the mask forbids"):
        attend(query, key, value, dropout=dropout, engine="sdpa")
