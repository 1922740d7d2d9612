"""A run from its settings to its checkpoints: started, resumed, what may change, and what survives."""

import io
import os
import shutil
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rearview.errors import BadArgument, BadFile
from rearview.training import Finished, NotSaved, Run, RunConfig, Saved, checkpoints, newest, read_metrics, train
from rearview.training.checkpoint import Record
from rearview.training.checkpoint.reader import shape_of
from rearview.training.config import CHANGEABLE
from tests.training.small_run import CONFIG as SMALL
from tests.training.small_run import small_data, small_run, until_saved

TEXT = "".join(f"Line {n} of a text that is about nothing in particular.\n" for n in range(80))
CONFIG = RunConfig(
    steps=8, context=16, layers=1, heads=2, width=16, batch=4, dropout=0.1, threads=1, eval_every=4, eval_tokens=64,
    sample_every=4, sample_tokens=8, save_every=4, log_every=2,
)  # fmt: skip


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    (tmp_path / "text.txt").write_text(TEXT)
    return replace(CONFIG, text=str(tmp_path / "text.txt"))


def finish(run: Run) -> None:
    *_, last = run.train()
    assert last == Finished(run.config.steps)


def test_a_resumed_run_is_bit_identical(config: RunConfig, tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    finish(Run.start(config, whole))
    until_saved(Run.start(config, parts).train(), step=4)
    resumed = Run.resume(parts)
    assert resumed.folder.step == 4
    assert resumed.config == replace(config, threads=1)
    finish(resumed)
    for name in ("metrics.jsonl", "step-000008/model.safetensors", "step-000008/optimizer.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes(), name


def test_nothing_is_written_before_training(config: RunConfig, tmp_path: Path):
    run = Run.start(config, tmp_path / "out")
    events = run.train()
    assert not (tmp_path / "out").exists()
    next(events)
    assert (tmp_path / "out").exists()


def test_a_checkpoint_holds_all_settings(config: RunConfig, tmp_path: Path):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    kept = Record.read(newest(out)).config
    assert RunConfig.from_json(kept) == config
    assert kept.keys() == {each.name for each in fields(RunConfig)}


def test_a_checkpoint_is_read_once(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    read: list[Path] = []
    whole = Record.damage
    monkeypatch.setattr(Record, "damage", lambda self, folder: read.append(folder) or whole(self, folder))
    finish(Run.resume(out, steps=9))
    assert read == [out / "step-000008"]


def test_a_resume_from_an_older_checkpoint_removes_the_later_ones(config: RunConfig, tmp_path: Path):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    until_saved(Run.resume(out / "step-000004", steps=6).train(), step=6)
    assert [path.name for path in checkpoints(out)] == ["step-000004", "step-000006"]
    assert max(record["step"] for record in read_metrics(out)) == 6


def test_changed_steps_are_remembered(config: RunConfig, tmp_path: Path):
    """A run that was extended and killed is extended when it is resumed again."""
    out = tmp_path / "out"
    finish(Run.start(config, out))
    until_saved(Run.resume(out, steps=16).train(), step=12)
    again = Run.resume(out)
    assert (again.folder.step, again.config.steps) == (12, 16)


def test_a_finished_run_has_nothing_left_to_train(config: RunConfig, tmp_path: Path):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    before = (out / "metrics.jsonl").read_bytes()
    finish(Run.resume(out))
    assert (out / "metrics.jsonl").read_bytes() == before


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunConfig]:
    """A run that was stopped at its first checkpoint; resuming it does not change it until it trains."""
    folder = tmp_path_factory.mktemp("started")
    for name in ("text.txt", "moved.txt"):
        (folder / name).write_text(TEXT)
    config = replace(CONFIG, text=str(folder / "text.txt"))
    until_saved(Run.start(config, folder / "out").train(), step=0)
    return folder / "out", config


@pytest.mark.parametrize("name", [each.name for each in fields(RunConfig)])
def test_each_setting_may_change_or_is_refused(name: str, started: tuple[Path, RunConfig]):
    out, config = started
    # Other than the defaults and than CONFIG, and valid for a GPT.
    values: dict[str, Any] = {
        "context": 8, "batch": 2, "accumulate": 2, "lr": 0.5, "warmup": 1, "floor": 0.5, "weight_decay": 0.5,
        "beta1": 0.5, "beta2": 0.5, "clip": 0.5, "seed": 1, "precision": "bfloat16", "compile": True,
        "checkpointing": True, "separator": "7", "validation": 0.2, "tokenizer": "chars", "vocab_size": 300,
        "layers": 2, "heads": 1, "width": 32, "positions": "rotary", "dropout": 0.0, "model": "bert", "kv_heads": 1,
        "mask": "causal() & window(2)", "steps": 9, "log_every": 1, "eval_every": 2, "eval_tokens": 32,
        "sample_every": 2, "sample_tokens": 4, "sample_prompt": "Line", "save_every": 2, "encoding": "ascii",
        "device": "cpu", "threads": 1, "tensorboard": True, "text": str(out.parent / "moved.txt"),
        # In one process they have one value each.
        "shard": False, "context_parallel": 1,
    }  # fmt: skip
    is_changeable = next(each for each in fields(RunConfig) if each.name == name).metadata.get(CHANGEABLE, False)
    if is_changeable:
        assert getattr(Run.resume(out, **{name: values[name]}).config, name) == values[name]
        return
    with pytest.raises(BadArgument) as error:
        Run.resume(out, **{name: values[name]})
    assert str(error.value) == (
        f"{name}: expected {getattr(config, name)}, as in the run in {out}, got {values[name]}. "
        "A run keeps its settings; start another run in another folder to change them."
    )


def test_train_checks_the_settings_too(tmp_path: Path):
    until_saved(small_run(tmp_path), step=4)
    with pytest.raises(
        BadArgument, match=r"lr: expected 0\.01, as in the run in .*, got 0\.5\. A run keeps its settings"
    ):
        list(small_run(tmp_path, resume=tmp_path, config=replace(SMALL, lr=0.5)))
    with pytest.raises(BadArgument, match="out, resume: expected one of them: a new run, or one to resume, got both"):
        list(train(torch.nn.Linear(1, 1), small_data(), SMALL, out=tmp_path, resume=tmp_path))


def test_what_cannot_be_resumed(config: RunConfig, tmp_path: Path):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    with pytest.raises(
        BadArgument, match=r"steps: expected at least 8, the number of steps that .*step-000008 has done"
    ):
        Run.resume(out, steps=7)
    with pytest.raises(BadArgument, match="changes: expected settings of RunConfig, got stepz"):
        Run.resume(out, stepz=7)
    with pytest.raises(
        BadArgument, match=r"run: expected a folder with checkpoints of .*, got .*, which does not exist"
    ):
        Run.resume(out / "step-000099")
    until_saved(small_run(tmp_path / "small"), step=0)
    with pytest.raises(BadFile) as error:
        Run.resume(tmp_path / "small")
    assert str(error.value) == (
        f"{tmp_path / 'small' / 'step-000000' / 'training.json'}: has no setting 'layers': the run was not started by "
        "rearview train or Run.start. Resume it with train(model, data, config, resume=...)."
    )


def test_a_text_must_have_the_same_content(config: RunConfig, tmp_path: Path):
    out = tmp_path / "out"
    finish(Run.start(config, out))
    moved = shutil.move(str(config.text), tmp_path / "moved.txt")
    with pytest.raises(BadFile, match=r": does not exist\. If the text was moved, say where it is now: --text\."):
        Run.resume(out, steps=9)
    with pytest.raises(BadFile, match=r"nowhere: does not exist\.$"):
        Run.resume(out, steps=9, text=str(tmp_path / "nowhere"))
    finish(Run.resume(out, steps=9, text=str(moved)))
    Path(moved).write_text(TEXT + "More.")
    with pytest.raises(BadArgument, match=r"text: expected the text of the run in .*, got another text \(fingerprint "):
        Run.resume(out, steps=10)


def test_a_relative_path_is_found_from_another_folder(config: RunConfig, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    until_saved(Run.start(replace(config, text="text.txt"), "out").train(), step=4)
    monkeypatch.chdir("/")
    assert Run.resume(tmp_path / "out").config.text == str(tmp_path / "text.txt")


def piped(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def test_the_standard_input_is_not_one_of_several_texts(config: RunConfig, tmp_path: Path):
    with pytest.raises(BadArgument, match=r"text: expected files and folders, or the standard input alone, got \['"):
        Run.start(replace(config, text=(str(config.text), "-")), tmp_path / "out")


def test_a_piped_text_moves_with_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    piped(monkeypatch, TEXT)
    until_saved(Run.start(replace(CONFIG, text="-", separator="7 of"), tmp_path / "out").train(), step=4)
    piped(monkeypatch, "")
    moved = shutil.move(tmp_path / "out", tmp_path / "moved")
    run = Run.resume(moved)
    assert run.data.documents == 9
    finish(run)


def test_everything_is_on_the_disk_before_the_first_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A power cut keeps what was synced, and a folder only if the one above it was."""
    opened: dict[int, str] = {}
    synced: list[str] = []
    before_open, before_sync, before_replace = os.open, os.fsync, os.replace

    def open_(path: str, *arguments: int) -> int:
        handle = before_open(path, *arguments)
        opened[handle] = str(path)
        return handle

    def replace_(source: Path, target: Path) -> None:
        synced.append(f"-> {target}")
        before_replace(source, target)

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "replace", replace_)
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(opened.get(handle, "")) or before_sync(handle))
    piped(monkeypatch, TEXT)
    out = tmp_path / "new" / "deep" / "out"
    until_saved(Run.start(replace(CONFIG, text="-"), out).train(), step=0)
    first = synced.index(f"-> {out / 'step-000000'}")
    for path in (tmp_path, out.parent.parent, out.parent, out, out / "text.txt"):
        assert str(path) in synced[:first], path
    assert synced.index(str(out / "text.txt")) > synced.index(f"-> {out / 'text.txt'}")
    assert synced[first + 1] == str(out)


def test_devices_and_threads_are_checked(config: RunConfig, tmp_path: Path):
    with pytest.raises(BadArgument, match="device: expected a device that torch can use here, got 'gpu'"):
        Run.start(replace(config, device="gpu"), tmp_path / "out")
    with pytest.raises(BadArgument, match="threads: expected an integer of at least 1, got 0"):
        Run.start(replace(config, threads=0), tmp_path / "out")
    large = replace(config, threads=None, width=256, batch=64, context=128)
    assert Run.start(large, tmp_path / "out").config.threads == torch.get_num_threads()


def test_a_small_model_is_trained_on_one_thread(config: RunConfig, tmp_path: Path):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        run = Run.start(replace(config, threads=None), tmp_path / "out")
        assert (run.config.threads, torch.get_num_threads()) == (1, 2)
        assert {torch.get_num_threads() for _ in run.train()} == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "changes",
    [
        {"model": "bert", "tokenizer": "chars"},
        {"model": "t5", "tokenizer": "bpe", "vocab_size": 300},
        {"mask": "none"},
        {"mask": "causal() & window(4)", "positions": "rotary", "kv_heads": 1},
    ],
    ids=str,
)
def test_every_kind_of_model_is_restored(changes: dict, config: RunConfig, tmp_path: Path):
    run = Run.start(replace(config, **changes), tmp_path / "out")
    events = run.train()
    until_saved(events, step=4)
    events.close()
    again = Run.resume(tmp_path / "out")
    assert type(again.model) is type(run.model)
    assert shape_of(again.model.config) == shape_of(run.model.config)
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_a_folder_that_is_deleted_is_noticed(config: RunConfig, tmp_path: Path):
    events = Run.start(config, tmp_path / "out").train()
    until_saved(events, step=4)
    shutil.rmtree(tmp_path / "out")
    with pytest.raises(NotSaved, match=r"step 8 could not be written to .*: No such file .*\. The folder was"):
        list(events)


def test_the_curve_is_in_the_folder(config: RunConfig, tmp_path: Path):
    run = Run.start(config, tmp_path / "out")
    assert [event.step for event in run.train() if isinstance(event, Saved)] == [0, 4, 8]
    assert run.save_curve() == tmp_path / "out" / "loss.svg"
    assert ">out<" in (tmp_path / "out" / "loss.svg").read_text()
