"""The exam: every token from its prefix alone; the same as validation for a model that only looks back."""

import math

import pytest
import torch
import torch.nn.functional as F

from rearview.comparison.exam import (
    NotTheSame,
    check_same,
    exam_batch,
    finish,
    from_prefixes,
    from_whole_windows,
)
from rearview.masks import causal, full, window
from rearview.training import NextToken, evaluate
from rearview.training.batches import Batch
from tests.comparison.example import a_model, a_text, windows

MASKS = pytest.mark.parametrize("mask", [causal(), full(), causal() & window(3)], ids=repr)


@MASKS
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@torch.no_grad()
def test_the_exam_is_every_prefix_run_alone(mask, positions):
    batch, model = windows(), a_model(mask, positions=positions)
    assert batch.ids is not None
    scores = finish(from_prefixes(model, batch))
    for row in range(len(batch.tokens)):
        for place in range(12):
            # Only what the document of this token has so far: nothing else of the row exists.
            own = batch.ids[row] == batch.ids[row, place]
            prefix = batch.tokens[row, : place + 1][own[: place + 1]]
            logits = model(prefix.unsqueeze(0))[0, -1]
            target = batch.targets[row, place]
            loss = F.cross_entropy(logits.unsqueeze(0), target.unsqueeze(0))
            torch.testing.assert_close(scores.losses[row, place], loss)
            assert bool(scores.right[row, place]) == (int(logits.argmax()) == int(target))


def test_a_model_that_only_looks_back_scores_as_in_validation():
    batch, model = windows(), a_model(causal())
    exam, at_once = finish(from_prefixes(model, batch)), from_whole_windows(model, batch)
    assert check_same(exam, at_once) < 1e-5
    assert torch.equal(exam.right, at_once.right)
    found = evaluate(model, NextToken(), a_text().validation, context=12, most_tokens=100 * 12)
    assert float(at_once.losses.mean()) == pytest.approx(found.loss, abs=1e-6)
    assert a_text().validation.bits_per_character(found.loss) == pytest.approx(found.bits_per_character)


def test_a_model_that_looks_ahead_does_not():
    batch, model = windows(), a_model(full(), seed=3)
    exam, at_once = finish(from_prefixes(model, batch)), from_whole_windows(model, batch)
    with pytest.raises(
        NotTheSame, match=r"should equal its validation on the same text up to rounding \(0\.001\), but differs by"
    ):
        check_same(exam, at_once)
    with pytest.raises(NotTheSame):
        check_same(type(exam)(exam.losses * math.nan, exam.right), at_once)


def test_the_future_changes_what_is_read_at_once_and_never_the_exam():
    batch, model = windows(), a_model(full())
    other = batch.tokens.clone()
    other[:, -1] = (other[:, -1] + 1) % 9
    changed = Batch(other, batch.targets, batch.ids, batch.positions)
    before, after = (finish(from_prefixes(model, each)).losses[:, :-1] for each in (batch, changed))
    assert torch.equal(before, after)
    # In windows of one document the last token is heard by all.
    assert batch.ids is not None
    whole = batch.ids[:, -1] == 0
    before, after = (from_whole_windows(model, each).losses[whole, :-1] for each in (batch, changed))
    assert bool((before != after).all())


def test_progress_counts_the_prefixes():
    assert list(from_prefixes(a_model(), windows())) == [(n, 12) for n in range(1, 13)]


def test_a_short_text_gives_all_of_its_windows():
    assert (
        len(exam_batch(a_text().validation, context=12, windows=10_000).tokens) == (len(a_text().validation) - 1) // 12
    )
