"""Both models have the same first weights and batches, and an interrupted comparison gives the same numbers."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rearview.comparison import (
    Comparison,
    ComparisonFinished,
    ComparisonStopped,
    ExamProgress,
    Settings,
    SideEvent,
    compare,
    comparing,
)
from rearview.comparison import experiment as module
from rearview.comparison.experiment import WITH, WITHOUT
from rearview.comparison.folder import REPORT, RESULT, load, save
from rearview.errors import BadArgument
from rearview.masks import causal, full
from rearview.models import GPT
from rearview.training import Finished, Stopped, TrainingStep, newest, read_metrics, train
from tests.comparison.example import SETTINGS, a_model, a_text


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(a_text(), SETTINGS, name="a text")


def test_each_side_is_an_ordinary_training_of_the_same_model(found: Comparison):
    for mask, side in ((causal(), found.with_mask), (full(), found.without_mask)):
        events = list(train(a_model(mask), a_text(), SETTINGS))
        assert side.mask == repr(mask)
        assert side.training == tuple((event.step, event.loss) for event in events if isinstance(event, TrainingStep))
        assert [step for step, _ in side.validation] == [10, 20]


def test_both_start_from_the_same_weights():
    one, other = (a_model(mask).state_dict() for mask in (causal(), full()))
    assert all(torch.equal(one[name], other[name]) for name in one)
    with pytest.raises(AssertionError, match="one seed gives the same first weights"):
        module._check_equal({WITH: a_model(), WITHOUT: a_model(seed=1)})


def test_the_exam_of_the_masked_model_is_its_validation(found: Comparison):
    assert found.self_check < 1e-5
    assert found.with_mask.exam.loss == pytest.approx(found.with_mask.at_once.loss, abs=1e-5)
    assert found.with_mask.exam.right == found.with_mask.at_once.right
    assert found.without_mask.exam.loss != pytest.approx(found.without_mask.at_once.loss, abs=1e-5)
    for side in (found.with_mask, found.without_mask):
        mean = sum(side.exam_by_prefix) / len(side.exam_by_prefix)
        assert mean == pytest.approx(side.exam.bits, rel=1e-5)


def test_the_result_knows_its_conditions(found: Comparison):
    known = found.conditions
    assert known.settings == SETTINGS
    assert (known.text, known.tokenizer, known.vocab_size) == ("a text", "characters", a_text().tokenizer.vocab_size)
    assert (known.fingerprint, known.exam_windows) == (a_text().fingerprint, 6)
    assert known.command.startswith("compare(data, Settings(steps=20, context=12, ")
    assert known.parameters == a_model().num_parameters()
    assert len(found.prompts) == len(found.with_mask.writing.texts) == len(found.continuations.texts) == 2
    assert len(found.shown) == 12
    assert all(len(text) == 10 for text in found.continuations.texts)


def test_weights_are_kept_to_four_digits(found: Comparison):
    for side in (found.with_mask, found.without_mask):
        for row in itertools.chain.from_iterable(head for layer in side.attention.weights for head in layer):
            assert abs(sum(row) - 10_000) <= 6
    heads = [head for layer in found.with_mask.attention.weights for head in layer]
    assert all(head[query][key] == 0 for head in heads for query in range(12) for key in range(query + 1, 12))
    assert found.with_mask.attention.mean_to_answer == 0
    assert found.without_mask.attention.mean_to_answer > 0


def test_events_are_in_order(tmp_path: Path):
    events = list(comparing(a_text(), SETTINGS, out=tmp_path))
    trained = [each for each in events if isinstance(each, SideEvent)]
    assert {each.side for each in trained if isinstance(each.event, Finished)} == {WITH, WITHOUT}
    steps = [(each.side, each.event.step) for each in trained if isinstance(each.event, TrainingStep)]
    # In turns: neither is ever more than a report ahead.
    assert all(abs(sum(1 if side == WITH else -1 for side, _ in steps[:n])) <= 5 for n in range(len(steps)))
    parts = [each for each in events if isinstance(each, ExamProgress)]
    assert [(each.side, each.task) for each in parts if each.done == each.total] == [
        (WITH, "exam"),
        (WITH, "text"),
        (WITHOUT, "exam"),
        (WITHOUT, "text"),
    ]
    assert isinstance(events[-1], ComparisonFinished)
    for side in (WITH, WITHOUT):
        model = GPT.from_pretrained(newest(tmp_path / side))
        assert repr(model.config.mask) == {WITH: "causal()", WITHOUT: "full()"}[side]


@pytest.mark.parametrize("after", [9, 23, 44, 60, 75])
def test_a_resumed_comparison_is_the_same(found: Comparison, tmp_path: Path, after: int):
    """Stopped in training of either, in the exam, while writing."""
    seen = itertools.count()
    first = list(comparing(a_text(), SETTINGS, name="a text", out=tmp_path, stop=lambda: next(seen) >= after))
    assert isinstance(first[-1], ComparisonStopped)
    assert not any(isinstance(each, ComparisonFinished) for each in first)
    assert compare(a_text(), SETTINGS, name="a text", out=tmp_path) == found
    assert [record["step"] for record in read_metrics(tmp_path / WITH) if "loss" in record] == list(range(1, 21))


def test_both_runs_are_saved_when_one_is_stopped(tmp_path: Path):
    seen = itertools.count()
    events = list(comparing(a_text(), SETTINGS, out=tmp_path, stop=lambda: next(seen) >= 9))
    stopped = [each for each in events if isinstance(each, SideEvent) and isinstance(each.event, Stopped)]
    assert len(stopped) == 1
    assert newest(tmp_path / WITH).name != "step-000000"
    assert newest(tmp_path / WITHOUT).name != "step-000000"


def test_a_comparison_is_not_resumed_with_another_text(tmp_path: Path):
    seen = itertools.count()
    list(comparing(a_text(), SETTINGS, out=tmp_path, stop=lambda: next(seen) >= 9))
    other = replace(a_text(), fingerprint="0" * 64)
    with pytest.raises(BadArgument, match=r"text: expected the text of the run in .*, got another text"):
        compare(other, SETTINGS, out=tmp_path)


def test_it_is_saved_and_loaded_again(found: Comparison, tmp_path: Path):
    report = save(found, tmp_path / "deep" / "folder")
    assert report == tmp_path / "deep" / "folder" / REPORT
    assert load(report.parent) == found
    assert (report.parent / RESULT).exists()


def test_too_little_text_is_refused_before_training():
    with pytest.raises(BadArgument, match=r"context: expected fewer tokens than the validation part of the text has"):
        compare(a_text(), replace(SETTINGS, context=500))


def test_settings_are_checked():
    with pytest.raises(BadArgument, match="new_tokens: expected an integer of at least 1, got 0"):
        Settings(new_tokens=0)
    with pytest.raises(BadArgument, match="context: expected an integer of at least 2, got 1"):
        Settings(context=1)
    with pytest.raises(BadArgument, match="width: expected a multiple of heads = 5, got 96"):
        Settings(heads=5)
    assert Settings().sample_every == 0
