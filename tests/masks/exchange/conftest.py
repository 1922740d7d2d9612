"""Masks of every family, with data for two items, three heads and nine positions, and the sizes to exchange them at."""

import pytest
import torch

from rearview import Mask, causal, dilated, documents, padding, prefix, where, window
from tests.mask_families import FAMILIES

LEFT = torch.arange(9) >= torch.tensor([[4], [0]])
PACKED = [[0, 0, 0, 1, 1, 1, 1, 2, 2], [5, 5, 5, 5, 5, 5, 5, 5, 5]]

MASKS: dict[str, Mask] = {name: family(2, 3, 9) for name, family in FAMILIES.items()} | {
    "prefix by item": prefix([2, 5]),
    "both ways": documents([0, 0, 1, 1, 1, 2, 0, 3, 3]),
    "both ways by item": documents(PACKED),
    "packed window": causal() & window(2) & documents(PACKED),
    "packed window ahead": window(2, ahead=1) & documents(PACKED),
    "right padding alone": padding([4, 9]),
    "left padding alone": padding(LEFT),
    "left padding, its queries silent": causal() & padding(LEFT) & documents(LEFT.long()),
    "where by item": where(lambda b, h, i, j: (i + j + b) % 2 == 0, batch=2),
    "no range form in documents": dilated(2) & documents(PACKED),
    "inverted": ~(window(2, ahead=1) | prefix(1)),
    "hidden causal": causal() & window(4096),
}


@pytest.fixture(params=list(MASKS.values()), ids=list(MASKS))
def mask(request: pytest.FixtureRequest) -> Mask:
    return request.param


# All at once, the last four over a cache, and four in the middle.
@pytest.fixture(params=[(9, 9, None), (4, 9, None), (4, 9, 3)], ids=str)
def size(request: pytest.FixtureRequest) -> tuple[int, int, int | None]:
    return request.param
