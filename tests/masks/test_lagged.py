"""Batches whose items are at different positions: every mask means for an item what it means alone."""

import pytest
import torch

from rearview import attend, causal, padding, prefix
from rearview.errors import BadArgument
from rearview.masks import Frame
from rearview.masks.lagged import lagged
from tests.mask_families import FAMILIES

BATCH, HEADS, LENGTH = 3, 4, 24
BY = [0, 5, 2]
CPU = torch.device("cpu")
families = pytest.mark.parametrize("family", FAMILIES, ids=FAMILIES.keys())


def brute(mask, q_len: int) -> torch.Tensor:
    """By item and query: the row at the position of the query."""
    whole = mask.visible_in(Frame.of(LENGTH), CPU).expand(BATCH, HEADS, LENGTH, LENGTH)
    rows = [[LENGTH - q_len + n - back for n in range(q_len)] for back in BY]
    return torch.stack([whole[item][:, positions] for item, positions in enumerate(rows)])


@families
@pytest.mark.parametrize("q_len", [1, 4])
def test_the_rule_and_the_ranges(family, q_len):
    mask = FAMILIES[family](BATCH, HEADS, LENGTH)
    placed = lagged(mask, BY)
    expected = brute(mask, q_len)
    assert torch.equal(placed.visible_in(Frame.of(q_len, LENGTH), CPU).expand_as(expected), expected)
    assert placed.has_ranges == mask.has_ranges
    if placed.has_ranges:
        assert torch.equal(placed.spans(q_len, LENGTH).to_bool().expand_as(expected), expected)


@families
@pytest.mark.parametrize("engine", ["auto", "blocks", "sdpa", "reference"])
def test_engines_support_it(family, engine):
    mask = FAMILIES[family](BATCH, HEADS, LENGTH)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, 1, 8, generator=generator)
    key, value = torch.randn(2, BATCH, 2, LENGTH, 8, generator=generator)
    visible = brute(mask, 1)
    # A key that no head of its group may hear may hold anything.
    unheard = ~visible.unflatten(1, (2, 2)).any(2).any(2).unsqueeze(-1)
    noisy = [tensor.masked_fill(unheard, torch.nan) for tensor in (key, value)]
    scores = query @ key.repeat_interleave(2, 1).transpose(-1, -2) / 8**0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1).nan_to_num(0.0)
    expected = weights @ value.repeat_interleave(2, 1)
    found = attend(query, *noisy, mask=lagged(mask, BY), engine=engine)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_without_a_lag_it_is_the_mask_itself():
    mask = causal()
    assert lagged(mask, [0, 0]) is mask


def test_it_composes_and_prints():
    placed = lagged(causal() | prefix(2), [0, 3]) & padding([8, 4])
    assert repr(placed) == "lagged(causal() | prefix(2), [0, 3]) & padding([8, 4])"
    visible = placed.to_bool(1, 8)[:, 0, 0].int().tolist()
    assert visible == [[1, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0, 0]]


def test_errors():
    with pytest.raises(BadArgument, match="by: expected"):
        lagged(causal(), [-1, 2])
