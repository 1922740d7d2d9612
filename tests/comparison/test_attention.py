"""Attention of both models: exact, a triangle with the mask, and the share of the answer."""

import math

import pytest
import torch

from rearview.comparison.attention import attention_of, most_readable, rows_of_one_document, share_of_answer
from rearview.masks import causal, full
from rearview.models import GPT
from rearview.training.batches import Batch
from tests.comparison.example import a_model, windows

TOKENS = torch.arange(12).unsqueeze(0) % 9


def weights_of(model: GPT, tokens: torch.Tensor = TOKENS) -> torch.Tensor:
    """[layers, heads, query, key]"""
    return torch.tensor(attention_of(model, tokens, shown=0).weights) / 10_000


@pytest.mark.parametrize("mask", [causal(), full()], ids=repr)
@torch.no_grad()
def test_the_first_layer_is_the_formula(mask):
    model = a_model(mask)
    x = model.tokens(TOKENS) + model.positions(torch.arange(12))  # pyright: ignore[reportOptionalCall]
    block = next(iter(model.blocks))
    query, key, _ = block.attention.project(block.attention_norm(x))
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    if repr(mask) == "causal()":
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf)
    wanted = scores.softmax(-1)[0]
    torch.testing.assert_close(weights_of(model)[0], wanted, atol=5.1e-5, rtol=0)
    found = attention_of(model, TOKENS, shown=0).to_answer[0]
    assert found == pytest.approx(wanted.diagonal(1, -2, -1).mean(-1).tolist(), abs=1e-6)


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_mask_makes_a_triangle_of_exact_zeros(positions):
    above = torch.ones(12, 12).triu(1).bool()
    masked, unmasked = (a_model(mask, positions=positions) for mask in (causal(), full()))
    assert bool((weights_of(masked)[..., above] == 0).all())
    assert bool((weights_of(unmasked) > 0).all())
    assert attention_of(masked, TOKENS, shown=0).mean_to_answer == 0


def test_the_share_of_the_answer_is_the_mean_over_the_tokens_that_have_one():
    weights = torch.zeros(2, 3, 3)
    weights[:, 0, 1], weights[:, 1, 2] = 0.5, 0.25
    assert share_of_answer(weights) == 0.375


def test_the_row_that_is_shown_is_one_of_many():
    rows = torch.stack([TOKENS[0], TOKENS[0].flip(0)])
    model = a_model(full())
    both = attention_of(model, rows, shown=1)
    alone = [attention_of(model, row.unsqueeze(0), shown=0) for row in rows]
    assert both.weights == alone[1].weights
    for layer, first, second in zip(both.to_answer, alone[0].to_answer, alone[1].to_answer, strict=True):
        assert layer == pytest.approx([(a + b) / 2 for a, b in zip(first, second, strict=True)], abs=1e-6)


def test_observing_leaves_the_model_unchanged():
    model = a_model()
    before = model(TOKENS)
    attention_of(model, TOKENS, shown=0)
    assert torch.equal(model(TOKENS), before)


def test_rows_are_of_one_document_where_there_are_such():
    batch = windows()
    assert batch.ids is not None
    rows = rows_of_one_document(batch)
    assert len(rows) == int((batch.ids[:, -1] == 0).sum())
    broken = Batch(batch.tokens, batch.targets, torch.ones_like(batch.ids), batch.positions)
    assert len(rows_of_one_document(broken, most=3)) == 3


def test_the_row_that_is_shown_begins_like_a_sentence():
    rows = torch.tensor([[0, 1], [2, 1], [3, 1]])
    words = {0: "x", 1: "y", 2: "T", 3: " "}
    assert most_readable(rows, lambda row: [words[int(token)] for token in row]) == 1
