"""The loop as an iterator of events: their order, and what is written."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from rearview.errors import BadArgument
from rearview.models import GPT, GPTConfig
from rearview.text import ByteTokenizer
from rearview.training import (
    Diverged,
    Finished,
    NextToken,
    Sample,
    Saved,
    Started,
    Stopped,
    TextData,
    TrainConfig,
    TrainingStep,
    Validation,
    evaluate,
    read_metrics,
    train,
)
from rearview.training.curve import draw_curve
from rearview.training.factory import new_model
from rearview.training.tensorboard import to_tensorboard
from tests.training.small_run import CONFIG, TEXTS, small_data, small_run, until_saved

NAMES = {Started: "-", TrainingStep: ".", Validation: "V", Sample: "S", Saved: "C", Stopped: "stop", Finished: "end"}


def written(events: list) -> str:
    return "".join(NAMES[type(event)] for event in events)


def test_events_are_in_order(tmp_path: Path):
    events = list(small_run(tmp_path))
    assert written(events) == "-C....VC....VSC....VC....VSCend"
    steps = [event for event in events if isinstance(event, TrainingStep)]
    assert [event.step for event in steps] == list(range(1, 17))
    assert all(event.tokens_per_second > 0 and event.grad_norm > 0 for event in steps)
    assert steps[2].lr == 1e-2
    assert steps[-1].lr == pytest.approx(1e-3)
    saved = [event for event in events if isinstance(event, Saved)]
    assert [event.path.name for event in saved] == [f"step-{step:06}" for step in (0, 4, 8, 12, 16)]


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    events = list(small_run(None))
    assert "C" not in written(events)
    assert not list(tmp_path.iterdir())


def test_metrics_are_what_was_yielded(tmp_path: Path):
    events = list(small_run(tmp_path))
    records = read_metrics(tmp_path)
    assert [record["loss"] for record in records if "loss" in record] == [
        e.loss for e in events if isinstance(e, TrainingStep)
    ]
    validations = [event for event in events if isinstance(event, Validation)]
    assert [record["validation"] for record in records if "validation" in record] == [e.loss for e in validations]
    assert [record["sample"] for record in records if "sample" in record] == [
        event.text for event in events if isinstance(event, Sample)
    ]


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    one, same = ([e.loss for e in small_run(None) if isinstance(e, TrainingStep)] for _ in range(2))
    other = [e.loss for e in small_run(None, config=replace(CONFIG, seed=1)) if isinstance(e, TrainingStep)]
    assert one == same
    assert one != other


def test_validation_and_samples_do_not_change_the_loss():
    """Validation, samples and reports draw nothing from what training draws from."""
    quiet = replace(CONFIG, eval_every=0, sample_every=0, log_every=16)
    one, other = ([e.loss for e in small_run(None, config=c) if isinstance(e, TrainingStep)] for c in (CONFIG, quiet))
    assert one == other


def test_accumulation_is_a_larger_batch():
    data = small_data()
    losses = []
    for batch, accumulate in ((6, 1), (3, 2), (2, 3)):
        config = replace(CONFIG, batch=batch, accumulate=accumulate, precision="float32", steps=6, sample_every=0)
        model = new_model("gpt", data.tokenizer, context=16, layers=1, heads=2, width=16)
        losses.append([e.loss for e in train(model, data, config) if isinstance(e, TrainingStep)])
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0] == pytest.approx(losses[2], abs=1e-5)


@pytest.mark.parametrize("options", [{"checkpointing": True}, {"precision": "bfloat16"}])
def test_ways_of_computing_give_the_same_curve(options: dict):
    plain = replace(CONFIG, precision="float32", sample_every=0)
    one, other = (
        [e.loss for e in small_run(None, config=config) if isinstance(e, TrainingStep)]
        for config in (plain, replace(plain, **options))
    )
    assert one == pytest.approx(other, abs=0.05 if "precision" in options else 1e-5)


def test_stop_saves_and_ends_the_run(tmp_path: Path):
    asked = iter([False] * 5 + [True] * 99)
    events = list(small_run(tmp_path, stop=lambda: next(asked)))
    assert written(events) == "-C....VC..Cstop"
    assert events[-1] == Stopped(6)
    assert events[-2] == Saved(6, tmp_path / "step-000006")
    list(small_run(tmp_path, resume=tmp_path))
    whole = tmp_path / "whole"
    list(small_run(whole))
    assert (tmp_path / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_loss_that_is_not_finite_ends_the_run(tmp_path: Path):
    data = small_data()
    model = new_model("gpt", data.tokenizer, context=16, layers=1, heads=2, width=16)
    events = train(model, data, CONFIG, out=tmp_path)
    until_saved(events, step=4)
    assert isinstance(model, GPT)
    torch.nn.init.constant_(model.norm.weight, float("nan"))
    with pytest.raises(Diverged, match=r"The loss is not finite at step 5 .*Lower the learning rate \(--lr\)"):
        list(events)
    # What was saved before is still there, and what is broken was not saved.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "step-000000", "step-000004"]
    assert read_metrics(tmp_path)[-1]["step"] == 4


def test_evaluation_is_the_mean_over_the_text():
    tokenizer = ByteTokenizer()
    data = TextData.of(["to be or not to be, that is the question. " * 20], tokenizer)
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, context=12, layers=1, heads=2, width=16, dropout=0.5)).train()
    found = evaluate(model, NextToken(), data.validation, context=12)
    assert model.training
    tokens = data.validation.tokens.long()
    count = (len(tokens) - 1) // 12
    rows = torch.stack([tokens[n * 12 : n * 12 + 13] for n in range(count)])
    model.eval()
    with torch.no_grad():
        wanted = torch.nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
    assert found.loss == pytest.approx(wanted.item(), rel=1e-5)
    # A byte is a character here, but for the end of the document.
    ratio = (len(tokens) - 1) / data.validation.characters
    assert found.bits_per_character == pytest.approx(found.loss * ratio / 0.6931472, rel=1e-5)


def test_the_context_is_that_of_the_config_or_of_the_model():
    data = small_data()
    model = new_model("gpt", data.tokenizer, context=16, layers=1, heads=2, width=16)
    with pytest.raises(BadArgument, match="context: expected at most 16, the context of the model, got 17"):
        list(train(model, data, replace(CONFIG, context=17)))
    t5 = new_model("t5", data.tokenizer, layers=1, heads=2, width=16)
    with pytest.raises(BadArgument, match="context: expected the tokens per row: this model has no context of its own"):
        list(train(t5, data, CONFIG))
    with pytest.raises(BadArgument, match="context: expected fewer tokens than the validation part"):
        list(train(t5, data, replace(CONFIG, context=len(data.validation))))


def test_a_model_of_ones_own_with_an_objective():
    class Bigram(torch.nn.Module):
        def __init__(self, vocab_size: int):
            super().__init__()
            self.table = torch.nn.Embedding(vocab_size, vocab_size)

        def forward(self, tokens, mask=None, positions=None):
            return self.table(tokens)

    data = small_data()
    config = TrainConfig(steps=30, context=16, lr=0.3, warmup=1, sample_every=0, eval_every=0)
    events = list(train(Bigram(data.tokenizer.vocab_size), data, config, objective=NextToken()))
    losses = [event.loss for event in events if isinstance(event, TrainingStep)]
    assert losses[-1] < losses[0] - 1


# Warnings of torch about itself when its compiler loads.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_a_compiled_model_learns_the_same(monkeypatch: pytest.MonkeyPatch):
    # Traced and differentiated by the compiler, run by plain PyTorch, which takes a tenth of the time.
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    torch.compiler.reset()
    config = replace(CONFIG, steps=3, precision="float32", accumulate=1, sample_every=0, compile=True)
    plain = replace(config, compile=False)
    one, other = ([e.loss for e in small_run(None, config=c) if isinstance(e, TrainingStep)] for c in (config, plain))
    assert one == pytest.approx(other, abs=1e-4)


def test_tensorboard_gets_every_number(tmp_path: Path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = list(to_tensorboard(small_run(None), tmp_path))
    assert written(events) == "-....V....VS....V....VSend"
    seen = EventAccumulator(str(tmp_path))
    seen.Reload()
    assert [scalar.step for scalar in seen.Scalars("loss/training")] == list(range(1, 17))
    wanted = [event.loss for event in events if isinstance(event, Validation)]
    assert [scalar.value for scalar in seen.Scalars("loss/validation")] == pytest.approx(wanted)


def test_the_curve_is_drawn(tmp_path: Path):
    list(small_run(tmp_path))
    for name in ("loss.svg", "again.svg"):
        draw_curve(read_metrics(tmp_path), tmp_path / name, title="small")
    picture = (tmp_path / "loss.svg").read_text()
    assert ">training<" in picture
    assert ">validation<" in picture
    assert ">small<" in picture
    assert picture == (tmp_path / "again.svg").read_text()
    draw_curve([], tmp_path / "empty.png")
    assert (tmp_path / "empty.png").read_bytes().startswith(b"\x89PNG")


def test_texts_have_rows_with_several_documents():
    """Else the runs above would not say much about packing."""
    data = small_data()
    assert len(data.train.starts) > 5
    assert len(TEXTS[0]) > 16
