"""Statistics, on a CPU and on a GPU: both sides agree, what is wrong is caught, what does not fit is not tried."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench import results
from bench.__main__ import main
from bench.harness import Case, Outcome, Row, Settings
from bench.process import in_own_process
from bench.suites import statistics as suite
from bench.suites import statistics_gpu as on_gpu
from rearview import causal
from rearview.attention.call import Call
from rearview.attention.stats import portable
from rearview.attention.stats.sums import Sums

SMALL = on_gpu.Inputs("small", 70, 16, causal())
CPU = torch.device("cpu")


@pytest.mark.parametrize("inputs", suite.INPUTS, ids=lambda inputs: inputs.name)
def test_eager_and_ours_agree(inputs: suite.Inputs):
    assert suite.disagreement(inputs, length=130) == ""


def test_a_wrong_figure_is_caught_and_not_timed(monkeypatch: pytest.MonkeyPatch):
    right = suite.eager
    monkeypatch.setattr(suite, "eager", lambda *args: right(*args) | {"entropy": torch.zeros(1, 8, 300)})
    inputs = suite.INPUTS[0]
    outcome = Case("causal", lambda: suite.contestants(inputs, 40), rounds=1, sample_ms=0.0).run(Settings())
    assert outcome.rows[0] == Row(suite.OURS, note="WRONG: entropy differs", is_wrong=True)
    assert "WRONG: entropy differs" in suite.table_of([outcome]).plain()


def test_targets_of_each_case():
    rows = [Row(name, (1.0, 1.0)) for name in (suite.OURS, suite.FUSED, suite.REFERENCE)]
    said = [Outcome(Case(each.name, list, targets=each.targets()), rows).verdicts() for each in suite.INPUTS]
    assert said[0] == [
        "NOT MET: causal, rearview statistics takes 1.00 of forward, reference, asked at most 0.8",
        "NOT MET: causal, rearview statistics takes 1.00 of forward, fused (SDPA), asked at most 0.8",
    ]
    assert said[1][0].startswith("met: causal, 2 key heads, rearview statistics takes 1.00 of forward, fused")
    assert said[-1] == []


def test_what_would_not_fit_is_told_and_not_tried(monkeypatch: pytest.MonkeyPatch):
    called = []

    def pretend(function: str, progress: object, name: str, length: int) -> dict[str, float]:
        called.append((name, length))
        return {"seconds": 1.0, "bytes": 2.0**30 if name == suite.EAGER else 2.0**20}

    monkeypatch.setattr(suite, "in_own_process", pretend)
    monkeypatch.setattr(suite, "free_bytes", lambda: 6 * 2.0**30)
    found = [task.run(Settings()) for task in suite.Growing().tasks(4096)]
    grown = [each for each in found if isinstance(each, suite.Growth)]
    needed = [each.bytes for each in grown if each.contestant == suite.EAGER]
    assert needed == [2.0**30, 4 * 2.0**30, 16 * 2.0**30]
    assert [length for name, length in called if name == suite.EAGER] == [1024]
    table = suite.table_of_growth(grown)
    assert [row[-1] for row in table.rows] == ["1024 MiB", "would need 4 GiB", "would need 16 GiB"]
    # Ctrl-C in a row leaves the row out.
    assert suite.table_of_growth(grown[:-1]).rows == table.rows[:-1]


def test_the_peak_of_a_process_is_its_own():
    # In this process, memory that earlier tests have freed may serve the call without any growth.
    told = in_own_process("bench.suites.statistics:one", name=suite.EAGER, length=700)
    # The weights alone are 4 x 700 x 700 floats.
    assert told["bytes"] is None or told["bytes"] > 4 * 700 * 700 * 4


def test_the_whole_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    monkeypatch.setattr(suite, "in_own_process", lambda *_, **__: {"seconds": 1.0, "bytes": 2.0**20})
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    assert main(["statistics", "--rounds", "1", "--length", "64", "--longest", "1024"]) == 0
    printed = capsys.readouterr().out
    (kept,) = tmp_path.iterdir()
    assert kept.name.endswith("-statistics.md")
    for text in (printed, kept.read_text()):
        assert "eager statistics" in text
        assert "1,024" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]):
    assert main(["statistics_gpu"]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_what_is_wrong_on_a_gpu_is_caught(monkeypatch: pytest.MonkeyPatch):
    query, key = SMALL.tensors(CPU)
    monkeypatch.setattr(on_gpu.gpu, "compute_sums", portable.compute_sums)
    assert on_gpu.disagreement(SMALL, query, key) == ""

    def wrong(call: Call, bin_width: int, links: int) -> Sums:
        sums = portable.compute_sums(call, bin_width, links)
        sums.received.mul_(0.5)
        return sums

    monkeypatch.setattr(on_gpu.gpu, "compute_sums", wrong)
    assert on_gpu.disagreement(SMALL, query, key) == "received differs"


def test_all_contestants_of_the_gpu_run():
    for contestant in on_gpu.contestants(SMALL, CPU):
        contestant.prepare().call()
