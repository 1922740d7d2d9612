"""weights_tile gives a part of the full matrix."""

from __future__ import annotations

import pytest
import torch

from rearview import alibi, causal
from rearview.attention import weights, weights_tile
from rearview.attention.stats import strips
from rearview.errors import BadArgument
from tests.attention.full_matrix import FullMatrix
from tests.mask_families import FAMILIES

TILES = [
    (slice(0, 60), slice(0, 60)),
    (slice(13, 30), slice(2, 25)),
    (slice(40, 41), slice(59, 60)),
    (slice(-5, None),) * 2,
]


def inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 4, 60, 8, dtype=dtype), torch.randn(2, 2, 60, 8, dtype=dtype)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_mask(family: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(strips, "MOST_ROWS", {"cpu": 8, "cuda": 8})
    monkeypatch.setattr(strips, "FEWEST_ROWS", 8)
    query, key = inputs()
    mask = FAMILIES[family](2, 4, 60)
    full = FullMatrix(query, key, mask).weights
    for rows, cols in TILES:
        torch.testing.assert_close(weights_tile(query, key, rows, cols, mask=mask), full[:, :, rows, cols])


@pytest.mark.parametrize(
    "options",
    [
        {"bias": alibi(4)},
        {"bias": torch.randn(2, 4, 60, 60, dtype=torch.float64)},
        {"bias": torch.randn(4, 1, 60, dtype=torch.float64)},
        {"softcap": 1.0, "scale": 2.0},
        {"sinks": torch.randn(4, dtype=torch.float64)},
    ],
)
def test_every_option(options: dict):
    query, key = inputs()
    full = FullMatrix(query, key, causal(), **options).weights
    tile = weights_tile(query, key, range(20, 33), range(5, 30), **options)
    torch.testing.assert_close(tile, full[:, :, 20:33, 5:30])


def test_frames_and_half_precision():
    query, key = inputs(torch.bfloat16)
    tile = weights_tile(query[:, :, :10], key, slice(2, 7), slice(0, 60), q_start=20)
    assert tile.dtype == torch.float32
    whole = weights(query[:, :, :10], key, q_start=20)
    torch.testing.assert_close(tile, whole[:, :, 2:7])
    # With more queries than keys, the first queries are before position 0.
    tile = weights_tile(query, key[:, :, :20], slice(0, 60), slice(0, 20))
    torch.testing.assert_close(tile, weights(query, key[:, :, :20]))


def test_empty_tiles():
    query, key = inputs()
    assert weights_tile(query, key, slice(5, 5), slice(0, 60)).shape == (2, 4, 0, 60)
    assert weights_tile(query, key, slice(0, 5), range(0)).shape == (2, 4, 5, 0)


@pytest.mark.parametrize(
    "rows", [slice(0, 10, 2), slice(9, 0, -1), range(0, 10, 3), range(50, 61), range(-3, 4), 3, [1, 2]]
)
def test_wrong_tiles(rows):
    query, key = inputs()
    with pytest.raises(BadArgument, match="rows: expected a slice or range with step 1 within 60, got"):
        weights_tile(query, key, rows, slice(0, 5))
    with pytest.raises(BadArgument, match="cols: expected a slice or range with step 1 within 60, got"):
        weights_tile(query, key, slice(0, 5), rows)
