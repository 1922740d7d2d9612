"""The harness: wrong contestants are caught, ratios, targets and files are what they say. No timing is asserted."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path

import pytest

from bench import results
from bench.__main__ import MODULES, chosen, document, main, noise, parser_for, suite_named
from bench.harness import (
    CPU,
    Case,
    Contestant,
    Outcome,
    Ready,
    Report,
    Row,
    Settings,
    Target,
    Task,
    any_wrong,
    interleaved,
)
from bench.noise import Neighbours, _own_seconds
from bench.process import Failed, InTurn, in_own_process
from bench.table import Table

NOTHING = Case("window", list)


def contestant(name: str, fault: str = "", **options: int) -> Contestant:
    return Contestant(name, lambda: Ready(lambda: None, lambda: fault), **options)


def run(*contestants: Contestant, rounds: int = 2) -> Outcome:
    return Case("case", lambda: contestants, rounds=rounds, sample_ms=0.0).run(Settings())


# Cases.


def test_a_wrong_answer_is_told_and_not_timed():
    outcome = run(contestant("rearview", "the output is off"), contestant("SDPA"))
    assert outcome.rows[0] == Row("rearview", note="WRONG: the output is off", is_wrong=True)
    assert outcome.row("rearview") is None
    assert outcome.row("SDPA") is not None
    assert any_wrong([outcome])
    assert not any_wrong([run(contestant("SDPA", "off"))])


def test_what_a_contestant_raises_becomes_a_note():
    def refuses() -> Ready:
        raise RuntimeError("\nneeds a compiler\nand more lines")

    assert run(Contestant("refuses", refuses)).rows == [Row("refuses", note="skipped: needs a compiler")]


def test_each_contestant_has_one_sample_per_round():
    counts = {"a": 0, "b": 0}

    def count(name: str) -> None:
        counts[name] += 1

    calls = {name: partial(count, name) for name in counts}
    taken = interleaved(calls, rounds=4, settings=Settings())
    assert {name: len(samples) for name, samples in taken.samples.items()} == {"a": 4, "b": 4}
    # Without a shortest sample every call counts.
    assert counts == {"a": 4, "b": 4}
    interleaved(calls, rounds=4, settings=Settings(), at_least_ms=0.01)
    assert min(counts.values()) >= 12


def test_a_contestant_may_leave_early():
    outcome = run(contestant("a"), contestant("b", rounds=2), rounds=5)
    assert [len(row.samples) for row in outcome.rows] == [5, 2]
    assert outcome.times_faster("a", than="b") is not None


def test_ctrl_c_keeps_the_rounds_that_are_complete():
    calls = iter([None, None, KeyboardInterrupt()])

    def call() -> None:
        if stop := next(calls):
            raise stop

    outcome = run(Contestant("a", lambda: Ready(call)), rounds=9)
    assert outcome.was_stopped
    assert outcome.rounds == len(outcome.rows[0].samples) == 2


def test_a_patient_bench_takes_disturbed_rounds_again(monkeypatch: pytest.MonkeyPatch):
    loud, rounds = iter([True, False, True, False, False]), []
    monkeypatch.setattr(Neighbours, "await_quiet", lambda self, deadline: rounds.append(1))
    monkeypatch.setattr(Neighbours, "are_loud", lambda self: next(loud))
    taken = interleaved({"a": lambda: None}, rounds=3, settings=Settings(patience_s=600.0))
    assert (len(rounds), len(taken.samples["a"]), taken.loud) == (5, 3, 0)


@pytest.mark.parametrize("patience", [0.0, 600.0])
def test_disturbed_rounds_that_are_kept_are_counted(monkeypatch: pytest.MonkeyPatch, patience: float):
    monkeypatch.setattr(Neighbours, "are_loud", lambda self: True)
    case = Case("step", lambda: [contestant("a")], rounds=3, can_repeat=not patience)
    outcome = case.run(Settings(patience_s=patience))
    assert (outcome.rounds, outcome.loud) == (3, 3)
    assert "disturbed 3 of 3 rounds: DO NOT TRUST these times" in noise([outcome], 0.5)


def test_what_other_programs_used_is_a_share_or_not_known():
    share = Neighbours().share()
    assert share is None or share >= 0
    assert noise([], None) == "it took 0 s; the processor time of other programs is not known on this system"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the processor time is known on Linux only")
def test_a_process_that_the_benchmark_started_is_not_another_program():
    before = _own_seconds()
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        deadline = time.monotonic() + 60
        while _own_seconds() < before + 0.5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert before + 0.5 <= _own_seconds()
    finally:
        spinning.kill()
        spinning.wait()
    # Nothing is lost when it has ended.
    assert before + 0.5 <= _own_seconds()


def test_a_ratio_is_the_median_of_the_ratios_round_by_round():
    # The second round was ten times slower for both: the ratio does not notice.
    outcome = Outcome(NOTHING, [Row("ours", (1.0, 10.0, 2.0)), Row("SDPA", (3.0, 40.0, 10.0))])
    assert outcome.times_faster("ours", than="SDPA") == 4.0
    assert outcome.times_faster("ours", than="nobody") is None


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (Target("ours", "SDPA", at_least=4), "met: window, ours against SDPA: 4.00x, asked 4x"),
        (
            Target("ours", "SDPA", at_least=4.1, remark="or so"),
            "NOT MET: window, ours against SDPA: 4.00x, asked 4.1x (or so)",
        ),
        (Target("ours", "SDPA", at_most=0.25), "met: window, ours takes 0.25 of SDPA, asked at most 0.25"),
        (Target("ours", "SDPA", at_most=0.2), "NOT MET: window, ours takes 0.25 of SDPA, asked at most 0.2"),
        (Target("ours", "flex", 1), "not judged: window, ours against flex: one of the two was not timed"),
    ],
)
def test_targets_are_met_or_not_by_their_number(target: Target, verdict: str):
    case = replace(NOTHING, targets=(target,))
    assert Outcome(case, [Row("ours", (1.0,)), Row("SDPA", (4.0,))]).verdicts() == [verdict]


# The command. The options that a suite cannot do without:
NEEDED = {"versions": ["--before", "."]}


@pytest.mark.parametrize("name", [name for name in MODULES if not name.endswith("sweep")])
def test_every_suite_declares_its_items(name: str):
    suite = suite_named(name)
    parser, words = parser_for([suite]), [name, *NEEDED.get(name, ())]
    args = parser.parse_args([*words, "--quick"])
    items = suite.items(args)
    assert items
    assert suite.title
    assert {item.title for item in items}
    # With nothing measured there is still a report.
    assert isinstance(suite.report(args, []), Report)
    assert not suite.is_whole(args)
    assert suite.is_whole(parser.parse_args(words))


def test_cases_are_chosen_by_name_or_by_words():
    items: list[Case | Task] = [replace(NOTHING, name=name) for name in ("causal", "causal L64", "prefix-LM", "full")]
    items.append(Task("peak", lambda settings: None, always=True))

    def names(wanted: str | None) -> list[str]:
        return [item.name for item in chosen(items, wanted, argparse.ArgumentParser())]

    assert names(None) == ["causal", "causal L64", "prefix-LM", "full", "peak"]
    assert names("causal, Prefix_lm") == ["causal", "prefix-LM", "peak"]
    assert names("l64") == ["causal L64", "peak"]


def test_what_is_unknown_lists_the_known(capsys: pytest.CaptureFixture[str]):
    for words, known in (
        (["--cases", "causality", "--device", "cpu"], "There are: causal, window, documents"),
        (["statistic"], "no suite 'statistic'. There are: attention, lowering, native"),
        (["--rounds", "0"], "expected at least 1, got 0"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert known in capsys.readouterr().err


def test_the_command_measures_and_keeps(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    sizes = ["--length", "16", "--heads", "2", "--dim", "8", "--rounds", "1", "--device", "cpu"]
    assert main(["--quick", "--cases", "causal,prefix_lm,decode", *sizes]) == 0
    printed, progress = capsys.readouterr()
    assert "rearview blocks" in printed
    assert "prefix-LM" in printed
    assert "not judged: targets are stated for B1 H8 L2048 D64, float32, on a CPU" in printed
    assert "WRONG:" not in printed
    assert "not kept" in printed
    assert "[5/5] decode, forward" in progress
    assert list(tmp_path.iterdir()) == []
    assert main(["decode", *sizes]) == 0
    (kept,) = tmp_path.iterdir()
    assert kept.name.endswith("-decode-b1-h2-l16-d8.md")
    assert kept.read_text().startswith(f"# Decoding one token, {date.today().isoformat()}\n\n- processor: ")


def test_ctrl_c_prints_what_was_finished(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    suite = suite_named("lowering")
    tasks: list[Case | Task] = [suite.items(argparse.Namespace(quick=True))[0], Task("stops", _interrupted)]
    monkeypatch.setattr(suite, "items", lambda args: tasks)
    monkeypatch.setattr("bench.suites.lowering.in_own_process", lambda *_, **__: {"seconds": 1.0, "peak_bytes": None})
    assert main(["lowering"]) == 130
    printed, told = capsys.readouterr()
    assert "rearview ranges" in printed
    assert "not kept" in printed
    assert "stopped; the finished cases follow" in told


def _interrupted(settings: Settings) -> object:
    raise KeyboardInterrupt


# What is printed and kept.


def test_a_document_has_all_parts():
    table = Table(("a | b", "ms", "note"), [("c", "1", "d")], last_is_words=True)
    text = document("Bench", Report(["machine"], [("forward", table)], ["met: it"], "ms: milliseconds."))
    rows = "| a \\| b | ms | note |\n| :-- | --: | :-- |\n| c | 1 | d |"
    title = f"# Bench, {date.today().isoformat()}"
    assert text == f"{title}\n\n- machine\n\n## forward\n\n{rows}\n\nms: milliseconds.\n\n## targets\n\n- met: it\n"


def test_the_file_has_a_date_a_machine_and_a_version(tmp_path: Path):
    import torch

    machine = replace(results.Machine.here(CPU), processor="Some CPU @ 3.0GHz")
    name = results.file_name(machine, today=date(2030, 1, 2), suffix="-bfloat16")
    version = torch.__version__.split("+")[0]
    assert name == f"2030-01-02-some-cpu-3-0ghz-torch{version}-bfloat16.md"
    results.write(tmp_path / "results" / name, "first")
    results.write(tmp_path / "results" / name, "second")
    assert [(file.name, file.read_text()) for file in (tmp_path / "results").iterdir()] == [(name, "second")]


def test_a_process_of_its_own_answers_or_says_why_not():
    found = in_own_process("bench.suites.lowering:lowered", what="ranges", length=300)
    assert found["seconds"] > 0
    assert found["peak_bytes"] is None or found["peak_bytes"] < 2**26
    with pytest.raises(Failed, match="KeyError: 'nothing'"):
        in_own_process("bench.suites.lowering:lowered", what="nothing", length=300)


def noted(*, name: str, path: str, ready: Callable[[], None]) -> str:
    """For the next test: what happens in a process, in a file that all append to."""
    for word in ("prepares", "measures"):
        with open(path, "a") as file:
            file.write(f"{name} {word}\n")
        if word == "prepares":
            ready()
    return name


def test_processes_prepare_together_and_measure_in_turn(tmp_path: Path):
    path, names = tmp_path / "order", ("a", "b", "c")
    calls = [("tests.bench.test_harness:noted", {"name": name, "path": str(path)}) for name in names]
    processes = InTurn(2)
    for call in calls:
        processes.add(*call)
    told: list[str] = []
    assert [processes.result(*call, told.append) for call in calls] == ["a", "b", "c"]
    order = path.read_text().splitlines()
    assert sorted(order[:2]) == ["a prepares", "b prepares"]
    assert order[2:] == ["a measures", "b measures", "c prepares", "c measures"]
    assert any("preparing" in each for each in told)


def test_a_process_does_not_outlive_the_benchmark(tmp_path: Path):
    call = ("tests.bench.test_harness:noted", {"name": "a", "path": str(tmp_path / "order")})
    command = [sys.executable, "-m", "bench.process", call[0], json.dumps(call[1]), "in turn"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "ended before the turn" in ended.stderr
