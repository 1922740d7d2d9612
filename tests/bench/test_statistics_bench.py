"""The bench of statistics: both sides say the same, ratios and targets are what they say. No timing is asserted."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from bench import statistics as bench
from bench.__main__ import main


@pytest.mark.parametrize("case", bench.CASES, ids=lambda case: case.name)
def test_eager_and_ours_agree(case: bench.Case):
    assert bench.disagreement(case, length=130) == ""


def test_a_wrong_figure_is_caught(monkeypatch: pytest.MonkeyPatch):
    right = bench.eager
    monkeypatch.setattr(bench, "eager", lambda *args: right(*args) | {"entropy": torch.zeros(1, 8, 130)})
    assert bench.disagreement(bench.CASES[0], length=130) == "causal: entropy differs"


def test_targets_say_met_or_not():
    samples = {bench.OURS: [1.0, 1.0], bench.FUSED: [1.0, 1.0], bench.REFERENCE: [1.0, 1.0]}
    said = bench.verdicts({case.name: samples for case in bench.CASES})
    assert said[0] == "causal: NOT MET: rearview statistics takes 1.00 of forward, reference, asked at most 0.8"
    assert said[1].startswith("causal: NOT MET: rearview statistics takes 1.00 of forward, fused")
    assert said[2].startswith("causal, 2 key heads: met: rearview statistics takes 1.00 of forward, fused")
    assert not any("one query" in text for text in said)
    assert bench.Target(bench.FUSED, 1.0).verdict({bench.OURS: [1.0]}).startswith("not judged")


def test_what_would_not_fit_is_told_and_not_tried(monkeypatch: pytest.MonkeyPatch):
    called = []

    def pretend(name: str, length: int) -> tuple[float, float]:
        called.append((name, length))
        return 1.0, 2.0**30 if name == bench.EAGER else 2.0**20

    monkeypatch.setattr(bench, "_in_a_process", pretend)
    monkeypatch.setattr(bench, "_free_bytes", lambda: 6 * 2.0**30)
    found = bench.grow([1024, 2048, 4096])
    assert [found[length][bench.EAGER] for length in (2048, 4096)] == ["would need 4 GiB", "would need 16 GiB"]
    assert [length for name, length in called if name == bench.EAGER] == [1024]
    assert "would need 16 GiB" in bench.table_of_growth(found).plain()


def test_the_peak_of_a_process_is_its_own():
    told = bench.one(bench.EAGER, 700)
    # The weights alone are 4 x 700 x 700 floats.
    assert math.isnan(told["bytes"]) or told["bytes"] > 4 * 700 * 700 * 4


def test_the_whole_of_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    monkeypatch.setattr(bench, "_in_a_process", lambda name, length: (1.0, 2.0**20))
    monkeypatch.setattr(bench.results, "RESULTS", tmp_path)
    assert main(["statistics", "--rounds", "1", "--length", "128", "--longest", "1024"]) == 0
    printed = capsys.readouterr().out
    (kept,) = tmp_path.iterdir()
    assert kept.name.endswith("-statistics.md")
    for text in (printed, kept.read_text()):
        assert "eager statistics" in text
        assert "1,024" in text
