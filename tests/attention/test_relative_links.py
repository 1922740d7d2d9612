"""relative_links: the pairs whose weight is the largest multiple of what uniform attention would give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rearview import alibi, causal, full
from rearview.attention.call import Call
from rearview.attention.stats import relative, relative_links
from tests.attention.full_matrix import FullMatrix
from tests.mask_families import FAMILIES


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4, 40, 8, dtype=torch.float64), torch.randn(2, 2, 40, 8, dtype=torch.float64)


def check(full: FullMatrix, call: Call, count: int) -> None:
    links, times = relative_links(call, count)
    every = (full.weights * full.visible.sum(-1, keepdim=True)).flatten(2)
    wanted = every.sort(-1, descending=True).values[..., :count]
    torch.testing.assert_close(times, torch.nn.functional.pad(wanted, (0, count - wanted.shape[-1])))
    there = links.weight > 0
    assert torch.equal(there, times > 0)
    assert bool(((links.query == -1) & (links.key == -1))[~there].all())
    pair = ((links.query - full.frame.q_start) * full.frame.k_len + links.key).masked_fill(~there, 0)
    for found, all_of in ((links.weight, full.weights.flatten(2)), (times, every)):
        torch.testing.assert_close(found, all_of.gather(-1, pair).masked_fill(~there, 0))
    for head in range(call.heads):
        for item in range(call.batch):
            taken = pair[item, head][there[item, head]]
            assert len(taken.unique()) == len(taken)


@pytest.mark.parametrize("rows", [7, 40])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_mask(family: str, rows: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relative, "PAIRS_AT_ONCE", rows * 8 * 40)
    query, key = inputs()
    mask = FAMILIES[family](2, 4, 40)
    check(FullMatrix(query, key, mask), Call.of_scores(query, key, mask=mask), 25)


@pytest.mark.parametrize("options", [{"bias": alibi(4)}, {"softcap": 1.0}, {"sinks": torch.ones(4).double()}])
def test_every_option(options: dict):
    query, key = inputs()
    full = FullMatrix(query, key, causal(), **options)
    check(full, Call.of_scores(query, key, mask=causal(), **options), 25)


def test_more_links_than_pairs_and_queries_that_continue_a_sequence():
    query, key = inputs()
    query, key = query[:, :, :3], key[:, :, :5]
    check(FullMatrix(query, key, causal(), q_start=1), Call.of_scores(query, key, mask=causal(), q_start=1), 30)


def test_a_row_of_nan_is_no_link():
    query, key = inputs()
    query[:, :, 7] = torch.nan
    links, times = relative_links(Call.of_scores(query, key, mask=causal()), 5)
    assert bool((times > 1).all())
    assert bool((links.query != 7).all())


def test_of_equal_multiples_the_first_pairs_are_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(relative, "PAIRS_AT_ONCE", 8)
    zeros = torch.zeros(1, 1, 8, 4, dtype=torch.float64)
    links, times = relative_links(Call.of_scores(zeros, zeros, mask=full()), 20)
    assert torch.equal(times, torch.ones_like(times))
    assert links.query[0, 0].tolist() == [0] * 8 + [1] * 8 + [2] * 4
    assert links.key[0, 0].tolist() == [*range(8), *range(8), *range(4)]
