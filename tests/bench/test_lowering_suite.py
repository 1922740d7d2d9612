"""The suite `lowering`: ranges and dense tensors of the same masks, and what a million positions may take."""

import pytest
import torch

from bench.__main__ import PROMISED
from bench.suites.lowering import CONTESTANTS, DOCUMENTS, MILLION, RANGES, TREE, Lowered, verdicts_of
from rearview.masks import Spans


@pytest.mark.parametrize("what", ["documents", "tree"])
def test_the_dense_tensor_is_the_same_mask(what: str):
    spans, heard = (CONTESTANTS[name].lower(300) for name in (what, f"dense {what}"))
    assert isinstance(spans, Spans)
    assert isinstance(heard, torch.Tensor)
    assert torch.equal(spans.to_bool()[0, 0], heard)
    assert what == "documents" or spans.most_ranges > 1


def test_a_million_positions_have_a_target():
    found = [
        Lowered(TREE, RANGES, MILLION, 0.25, None),
        Lowered(DOCUMENTS, RANGES, MILLION, 1.5, None),
        Lowered(TREE, "dense bool tensor", 16_384, 9.0, None),
        Lowered(TREE, RANGES, 2048, 0.1, None),
    ]
    assert verdicts_of(found) == [
        "met: tree, 1 in 100 branches to ranges, 1,000,000 positions: 0.250 s, asked less than 1 s",
        "NOT MET: causal() & documents of 10 to ranges, 1,000,000 positions: 1.500 s, asked less than 1 s",
    ]
    assert "lowering" in PROMISED
