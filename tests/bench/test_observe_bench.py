"""The bench of observe: what is predicted, what is judged. No timing is asserted."""

from __future__ import annotations

import pytest

from bench import observe as bench


def outcome(mode: str, *, length: int = 32768, peak: float = 1.0, output: str = "a", received=(1.0, 2.0)):
    return bench.Outcome(bench.Case(mode, length, 4, 8), 1.0, peak, output, list(received))


def test_what_weights_would_need():
    # 32,768 x 32,768 x 4 bytes are 4 GiB: 32 heads returned, scores of 8, the mask.
    assert bench.Case(bench.EAGER, 32768, 4, 8).eager_gib == 4 * (32 + 8 + 1)


def test_a_wrong_run_is_told():
    plain, watched, eager = (outcome(mode) for mode in (bench.PLAIN, bench.WATCHED, bench.EAGER))
    assert bench._wrong({bench.PLAIN: plain, bench.WATCHED: watched, bench.EAGER: eager}) == []
    changed = outcome(bench.WATCHED, output="b")
    assert "watching changed" in bench._wrong({bench.PLAIN: plain, bench.WATCHED: changed})[0]
    other = outcome(bench.EAGER, received=(1.0, 2.1))
    assert "what keys received" in bench._wrong({bench.WATCHED: watched, bench.EAGER: other})[0]


def test_the_verdict():
    plain = outcome(bench.PLAIN)
    assert bench.verdict([plain, outcome(bench.WATCHED, peak=2.0)]).startswith("met: watching 32,768 tokens adds 1.00")
    assert bench.verdict([plain, outcome(bench.WATCHED, peak=2.6)]).startswith("NOT MET")
    assert bench.verdict([outcome(bench.PLAIN, length=1024)]).startswith("not judged")


def test_eager_is_predicted_and_not_tried(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def pretend(case: bench.Case) -> bench.Outcome:
        tried.append(case.mode)
        return outcome(case.mode, length=case.length)

    monkeypatch.setattr(bench, "measured", pretend)
    monkeypatch.setattr(bench, "free_gib", lambda: 160.0)
    row, found, wrong = bench.compared(32768, 4, 8)
    assert (tried, len(found), wrong) == ([bench.PLAIN, bench.WATCHED], 2, [])
    assert row[-2:] == ["would need 164 GiB", ""]


def test_a_small_run_of_each_agrees():
    found = {mode: bench.run(bench.Case(mode, 96, 1, 2)) for mode in (bench.PLAIN, bench.WATCHED, bench.EAGER)}
    assert bench._wrong(found) == []
    assert len(found[bench.WATCHED].received) == 64
