"""Attention of both models: exact, a triangle with the mask, and the share of the answer."""

import math

import pytest
import torch

from rearview.masks import causal, full
from rearview.training.batches import Batch
from rearview.training.comparison.heard import attention_of, rows_of_one_document, sentence_of, to_the_answer
from tests.training.comparison.example import a_model, windows

TOKENS = torch.arange(12).unsqueeze(0) % 9


@pytest.mark.parametrize("mask", [causal(), full()], ids=repr)
@torch.no_grad()
def test_the_first_layer_is_the_formula(mask):
    model = a_model(mask)
    found = attention_of(model, TOKENS)
    x = model.tokens(TOKENS) + model.positions(torch.arange(12))  # pyright: ignore[reportOptionalCall]
    block = next(iter(model.blocks))
    query, key, _ = block.attention.project(block.attention_norm(x))
    scores = query @ key.transpose(-1, -2) / math.sqrt(8)
    if repr(mask) == "causal()":
        scores = scores.masked_fill(torch.ones(12, 12).triu(1).bool(), -math.inf)
    torch.testing.assert_close(found[0], scores.softmax(-1))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_mask_makes_a_triangle_of_exact_zeros(positions):
    above = torch.ones(12, 12).triu(1).bool()
    masked, unmasked = (attention_of(a_model(mask, positions=positions), TOKENS) for mask in (causal(), full()))
    assert masked.shape == unmasked.shape == (2, 1, 2, 12, 12)
    assert bool((masked[..., above] == 0).all())
    assert bool((unmasked > 0).all())
    assert not to_the_answer(masked).any()


def test_the_share_of_the_answer_is_the_mean_over_those_that_have_one():
    weights = torch.zeros(1, 2, 1, 3, 3)
    weights[0, :, 0, 0, 1], weights[0, :, 0, 1, 2] = 0.5, 0.25
    assert to_the_answer(weights).tolist() == [[0.375]]


def test_looking_leaves_nothing_behind():
    model = a_model()
    before = model(TOKENS)
    attention_of(model, TOKENS)
    assert torch.equal(model(TOKENS), before)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)


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
    assert sentence_of(rows, lambda row: [words[int(token)] for token in row]).tolist() == [2, 1]
