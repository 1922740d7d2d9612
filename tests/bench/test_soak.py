"""The experiments of `make soak`: a slice of each, and that each would notice what it is there to notice."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench.__main__ import main
from bench.soak import attend_calls, damaged_files, long_loops, power_cuts
from bench.soak.children import Children, children
from bench.soak.experiment import Experiment, Session, Tally
from bench.soak.training_faults import DOUBLE_STARTS, FILE_FAULTS, FULL_DISKS, KILLS, compare, whole_run
from bench.suites import soak
from rearview.training import newest


@pytest.mark.parametrize(
    "experiment",
    [
        *(attend_calls.EXPERIMENT, KILLS, FILE_FAULTS, FULL_DISKS, DOUBLE_STARTS),
        *(damaged_files.EXPERIMENT, power_cuts.EXPERIMENT, long_loops.GENERATION, long_loops.STUDIO),
    ],
    ids=lambda experiment: experiment.name,
)
def test_a_slice_of_every_experiment(experiment: Experiment):
    tally = experiment.quickly()
    if tally.missing:
        pytest.skip(tally.missing)
    assert tally.trials >= experiment.quick
    assert tally.failures == []


def test_another_answer_is_noticed(monkeypatch: pytest.MonkeyPatch):
    whole = attend_calls.attend

    def wrong(*inputs: torch.Tensor, **options: object) -> object:
        out, lse = whole(*inputs, **options)  # pyright: ignore
        return out * 1.001, lse

    monkeypatch.setattr(attend_calls, "attend", wrong)
    monkeypatch.setattr(attend_calls, "hidden_is_heard", lambda *_: False)
    tally = Tally()
    attend_calls.EXPERIMENT.run(Session(random.Random(0), most=100), tally)
    assert tally.failed > 30
    assert "the output is off by" in " ".join(tally.failures)


def test_a_case_is_repeated_by_its_name(capsys: pytest.CaptureFixture[str]):
    attend_calls.repeat("1 2")
    assert capsys.readouterr().out == "nothing is wrong\n"


def test_other_bits_and_left_over_files_are_noticed():
    with whole_run(steps=2) as (found, whole, _):
        out = found.new_folder()
        tally = Tally()
        compare(tally, "a run", whole, found, out)
        assert tally.failures == []
        other = found.new_folder()
        compare(tally, "a run", {**whole, "model.safetensors": "0"}, found, other)
        assert tally.failures == ["a run: other bits in model.safetensors"]
        (other / ".left").touch()
        compare(tally, "a run", whole, found, other)
        assert tally.failures[1:] == ["a run: .left is left in the folder"]


def test_damage_that_is_not_noticed_is(monkeypatch: pytest.MonkeyPatch):
    """Weights that change without a word are what the experiment is there to find."""
    monkeypatch.setattr(damaged_files, "files_of", lambda out: [out / "metrics.jsonl"])
    monkeypatch.setattr(damaged_files, "METRICS", "another name")
    monkeypatch.setattr(
        damaged_files, "DAMAGE", {"digits": lambda data, draw: bytes(data).replace(b'"loss": ', b'"loss": 9')}
    )
    monkeypatch.setattr(random.Random, "choice", lambda self, options: next(iter(options)))
    tally = damaged_files.EXPERIMENT.run(Session(random.Random(0), most=1))
    assert tally.failed == 1
    assert tally.failures[0].endswith("other bits in metrics.jsonl")


def test_growing_memory_is_noticed():
    samples, tally = [], Tally()

    def leak() -> None:
        tally.tried["leaks"] += 1
        samples.append(torch.ones(1 << 20))

    long_loops.looped(tally, Session(random.Random(0), most=60), leak)
    assert tally.failed == 1
    assert "the memory grew by" in tally.failures[0]


def test_a_hanging_process_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bench.soak.children.PATIENCE", 0.5)
    with children() as found, pytest.raises(AssertionError, match="did not end within"):
        found.end(found.start(_sleep, log=found.workspace / "log"))


def _sleep() -> None:
    import time

    time.sleep(60)


def test_the_suite_reports_what_was_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    def fails(tally: Tally, session: Session) -> None:
        while session.goes_on(tally):
            tally.tried["trials"] += 1
        tally.fail("lost a step")

    def stopped(tally: Tally, session: Session) -> None:
        tally.tried["trials"] += 7
        raise KeyboardInterrupt

    one, other = (
        Experiment(name, "Nothing is lost.", function) for name, function in (("one", fails), ("two", stopped))
    )
    monkeypatch.setattr(soak, "EXPERIMENTS", (replace(one, quick=3), other))
    assert main(["soak", "--quick", "--seed", "1", "--cases", "one"]) == 1
    said = capsys.readouterr().out
    assert "FAILED: one: `lost a step`" in said
    # Ctrl-C: what was done so far is printed.
    assert main(["soak", "--quick", "--seed", "1"]) == 130
    said = capsys.readouterr().out
    assert "7 trials" in said
    assert "seed 1" in said


def test_a_run_that_is_half_done_goes_on(tmp_path: Path):
    found = Children(tmp_path, steps=2)
    assert len(found.finished(tmp_path / "run")) == 4
    assert newest(tmp_path / "run").name == "step-000002"
