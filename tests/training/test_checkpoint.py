"""Checkpoints: their content, damage, a full disk, and runs of another shape or text."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rearview.errors import BadArgument, BadFile, RearviewError
from rearview.models import GPT
from rearview.text import load_tokenizer
from rearview.training import (
    NextToken,
    NotSaved,
    TextData,
    best,
    checkpoints,
    model_folder,
    newest,
    read_checkpoint,
    read_metrics,
    train,
)
from rearview.training.checkpoint import Record, prune
from rearview.training.factory import new_model
from tests.training.small_run import CONFIG, TEXTS, small_data, small_run, until_saved


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run")
    list(small_run(out))
    return out


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A finished run to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def test_a_checkpoint_is_a_model_that_others_read(whole: Path):
    path = newest(whole)
    assert path.name == "step-000016"
    assert model_folder(whole) == path
    assert model_folder(path) == path
    model, tokenizer = GPT.from_pretrained(path), load_tokenizer(path)
    theirs = AutoModelForCausalLM.from_pretrained(path)
    tokens = torch.tensor([tokenizer.encode("green")])
    with torch.no_grad():
        torch.testing.assert_close(theirs(tokens).logits, model(tokens), atol=1e-5, rtol=1e-4)
    assert sorted(file.name for file in path.iterdir()) == [
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "rearview_tokenizer.json",
        "training.json",
    ]
    record = Record.read(path)
    assert record.step == 16
    assert record.config == CONFIG.to_json()
    assert record.validation == read_metrics(whole)[-2].get("validation")


def test_the_newest_two_and_the_best_are_kept(run: Path):
    # As if an earlier one had been the best.
    for step, loss in ((4, 0.001), (6, 9.0), (8, None)):
        path = Path(shutil.copytree(run / "step-000012", run / f"step-{step:06}"))
        record = replace(Record.read(path), step=step, validation=loss)
        (path / "training.json").write_bytes(record.to_bytes())
    prune(run)
    assert [path.name for path in checkpoints(run)] == ["step-000004", "step-000012", "step-000016"]
    assert best(run).name == "step-000004"
    assert newest(run).name == "step-000016"


def test_a_run_is_not_overwritten(run: Path):
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(BadArgument) as error:
        list(small_run(run))
    assert str(error.value) == (
        f"out: expected a folder without a run, got {run}, which has step-000016. "
        f"Resume that run (rearview train --resume {run}), or choose another folder."
    )
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors", "training.json"])
@pytest.mark.parametrize(
    ("damage", "why"), [(flip, "is damaged"), (cut, "is damaged"), (Path.unlink, "is damaged|cannot be read")]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it(
    name: str, damage: Callable[[Path], None], why: str, run: Path, whole: Path
):
    if name == "training.json" and damage is cut:
        # Only a line end follows the last bracket.
        cut(run / "step-000016" / name)
    damage(run / "step-000016" / name)
    with pytest.raises(BadFile, match=why) as error:
        list(small_run(run, resume=run, config=replace(CONFIG, steps=20)))
    good = run / "step-000012"
    assert error.value.path == str(run / "step-000016" / name)
    assert str(error.value).endswith(
        f"The checkpoint {good} is not damaged; resume from it: rearview train --resume {good}"
    )
    # That one can be resumed, to the same end.
    list(small_run(run, resume=good))
    assert (run / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()
    model = "step-000016/model.safetensors"
    assert (run / model).read_bytes() == (whole / model).read_bytes()


def test_every_checkpoint_is_damaged(run: Path):
    for path in checkpoints(run):
        flip(path / "model.safetensors")
    with pytest.raises(BadFile, match="The run has no other checkpoint that is not damaged; start it again"):
        read_checkpoint(newest(run))


def test_a_model_of_another_shape(run: Path):
    data = small_data()
    model = new_model("gpt", data.tokenizer, context=16, layers=2, heads=2, width=32, dropout=0.1)
    with pytest.raises(BadArgument) as error:
        list(train(model, data, replace(CONFIG, steps=20), resume=run))
    assert str(error.value) == (
        f"model: expected the shape of {run / 'step-000016'}: layers = 1, width = 16, hidden = 64, got layers = 2, "
        "width = 32, hidden = 128. A run keeps its shape; start another run in another folder to change it."
    )
    bert = new_model("bert", data.tokenizer, context=16, layers=1, heads=2, width=16)
    config = replace(CONFIG, steps=20)
    with pytest.raises(BadArgument, match=r"model: expected a GPT, as in .*, got BERT"):
        list(train(bert, data, config, resume=run, objective=NextToken()))
    # From an older one, too, nothing changes before everything was checked.
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(BadArgument, match="model: expected the shape of"):
        list(train(model, data, config, resume=run / "step-000012"))
    assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_another_text(run: Path):
    data = small_data()
    other = TextData.of([*TEXTS[:-1], TEXTS[-1] + " fall"], data.tokenizer)
    model = new_model("gpt", data.tokenizer, context=16, layers=1, heads=2, width=16, dropout=0.1)
    with pytest.raises(BadArgument, match=r"text: expected the text of the run in .*, got another text "):
        list(train(model, other, replace(CONFIG, steps=20), resume=run))


def test_nothing_to_resume(tmp_path: Path):
    with pytest.raises(BadArgument, match=r"run: expected a folder with checkpoints.*, which has none"):
        list(small_run(tmp_path, resume=tmp_path))
    with pytest.raises(BadArgument, match="which does not exist"):
        newest(tmp_path / "nowhere")
    (tmp_path / "file").touch()
    with pytest.raises(BadArgument, match="which is a file"):
        newest(tmp_path / "file")


def test_a_folder_that_cannot_be_made(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BadArgument, match=r"out: expected a folder that can be made, got Not a directory"):
        list(small_run(tmp_path / "file" / "run"))


WRITES = [(Path, "write_bytes", n) for n in range(4)] + [(Path, "write_text", 0)]
WRITES += [(os, "fsync", n) for n in range(7)] + [(os, "replace", n) for n in range(3)]


@pytest.mark.parametrize(("owner", "call", "count"), WRITES, ids=[f"{call}-{n}" for _, call, n in WRITES])
def test_a_full_disk_loses_nothing(owner, call: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = tmp_path / "run"
    calls = [0]
    before = getattr(owner, call)

    def full(*arguments, **options):
        calls[0] += 1
        if calls[0] > count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return before(*arguments, **options)

    events = small_run(out)
    until_saved(events, step=4)
    monkeypatch.setattr(owner, call, full)
    with pytest.raises(NotSaved) as error:
        list(events)
    monkeypatch.undo()
    assert str(error.value) == (
        f"The checkpoint of step 8 could not be written to {out}: No space left on device. "
        f"The checkpoint {out / 'step-000004'} is intact. Free some space, then: rearview train --resume {out}"
    )
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "step-000000", "step-000004"]
    for path in checkpoints(out):
        read_checkpoint(path)


def test_a_disk_that_is_full_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotSaved, match=r"step 0 could not be written .*No part of it was left. Free some space, or"):
        list(small_run(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_an_incomplete_last_line_of_metrics_is_left_out(run: Path, whole: Path):
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:7])
    assert len(read_metrics(run)) == len(lines) - 1
    path.write_bytes(b"".join(lines[:3]) + b"nonsense\n")
    with pytest.raises(BadFile, match=r"metrics\.jsonl: line 4 is not a record of a run"):
        read_metrics(run)


def test_a_record_is_restored_from_its_bytes():
    record = Record(step=3, config={"lr": 0.1}, fingerprint="ab", validation=0.1 + 0.2, files={"x": (3, "00")})
    assert Record.from_bytes(record.to_bytes(), "x") == record
    for bad in (b"", b"[]", b"{}", json.dumps({"checksum": "", "files": {}}).encode()):
        with pytest.raises(BadFile, match="is damaged, or is not the record of a checkpoint"):
            Record.from_bytes(bad, "x")


def test_a_damaged_model_is_not_loaded(run: Path):
    """A changed bit in the weights would change the text that is generated, without a word."""
    path = newest(run) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-2] ^= 4
    path.write_bytes(data)
    older = ", ".join(each.name for each in checkpoints(run)[:-1])
    with pytest.raises(BadFile) as error:
        model_folder(run)
    assert str(error.value) == (
        f"{path}: is damaged: its checksum does not match. Other checkpoints of the run: {older}."
    )
    # The state of the optimizer is not needed.
    older_one = checkpoints(run)[0]
    (older_one / "optimizer.safetensors").unlink()
    assert model_folder(older_one) == older_one


def test_files_that_a_killed_process_left_are_removed(run: Path):
    left = [run / ".metrics.jsonl.123.part", run / ".step-000020.123.part" / "config.json"]
    left[1].parent.mkdir()
    for path in left:
        path.write_text("{")
    until_saved(small_run(run, resume=run), step=16)
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


def test_a_disk_that_fails_between_checkpoints_is_named(run: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "somewhere")

    shutil.rmtree(run / "step-000016")
    # What removes the checkpoints that are no longer needed.
    monkeypatch.setattr("rearview.training.run_folder.prune", refuse)
    with pytest.raises(RearviewError) as error:
        list(small_run(run, resume=run))
    assert str(error.value) == (
        "somewhere: Input/output error. No checkpoint was damaged. When the disk works again, resume the run "
        f"(rearview train --resume {run}), or start it again if it has no checkpoint yet."
    )
    monkeypatch.undo()
    until_saved(small_run(run, resume=run), step=16)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"step": "7"}, 'step: expected an integer, got "7"'),
        ({"step": -1}, "step: expected a number of at least 0, got -1"),
        ({"config": []}, "config: expected an object, got []"),
        ({"files": {"a": [1]}}, "files.a: expected a list of 2, got 1 values"),
        ({"files": {"../a": [1, "b"]}}, 'files: expected names of files in this folder, got "../a"'),
        ({"files": {"/etc/passwd": [1, "b"]}}, 'files: expected names of files in this folder, got "/etc/passwd"'),
        ({"validation": "low"}, 'validation: expected null, got "low"'),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_record_of_other_types_is_refused(change: dict, why: str):
    record = Record(step=7, config={}, fingerprint="", validation=float("nan"), files={})
    body = {**json.loads(record.to_bytes()), **change}
    with pytest.raises(BadFile) as error:
        Record.from_bytes(json.dumps(body).encode(), "training.json")
    assert str(error.value) == f"training.json: is damaged, or is not the record of a checkpoint: {why}."


@pytest.mark.parametrize(
    "line", ["[1]", '{"step": 1e999}', '{"step": true}', '{"step": 1, "loss": "low"}', "[" * 99_999]
)
def test_metrics_of_other_types_are_refused(line: str, tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(f"{line}\n")
    with pytest.raises(BadFile, match=r"metrics\.jsonl: line 1 is not a record of a run: "):
        read_metrics(tmp_path)
