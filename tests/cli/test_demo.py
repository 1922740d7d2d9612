"""rearview demo: computed, not recited; the trace of the worked example, then the next word."""

import dataclasses

import pytest

from rearview import causal
from rearview.cli import demo
from rearview.explain.examples import FOUR_SPEAKERS


def test_it_shows_the_trace_and_the_mask(rearview):
    done = rearview("demo")
    assert (done.code, done.err) == (0, "")
    assert f"{FOUR_SPEAKERS.trace().show()}\n" in done.out
    assert f"{causal().show('I love ___')}\n" in done.out


def test_a_weight_that_is_zero_looks_different_from_one_that_rounds_to_it(rearview):
    weights = rearview("demo").out.partition("A = softmax(S + M)\n")[2]
    lines = weights.splitlines()
    first, last = (next(line for line in lines if line.startswith(f" {name} ")).split() for name in ("Frank", "Alex"))
    assert first[1:5] == ["1.000", "0", "0", "0"]
    assert last[1:5] == ["0.993", "0.000", "0.001", "0.006"]


def test_it_reads_the_weights_aloud(rearview):
    out = rearview("demo").out
    for sentence in (
        "Frank — 100.0 % himself\n",
        "Emma — 98.2 % Frank, 1.8 % herself\n",
        "Daniel — 67.8 % Frank, 27.2 % himself, 5.0 % Emma\n",
        "Alex — 99.3 % Frank, 0.6 % himself, 0.1 % Daniel, a trace of Emma\n",
    ):
        assert sentence in out


def test_it_computes_what_it_prints(rearview, monkeypatch: pytest.MonkeyPatch):
    arguments = {**FOUR_SPEAKERS.arguments, "query": ((0.0, 0.0),) * 4}
    monkeypatch.setattr(demo, "FOUR_SPEAKERS", dataclasses.replace(FOUR_SPEAKERS, arguments=arguments))
    assert "Emma — 50.0 % Frank, 50.0 % herself\n" in rearview("demo").out


def test_what_it_points_to_works(rearview, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    out = rearview("demo").out
    commands = [line.split("rearview ")[1].split("   ")[0] for line in out.splitlines() if "  rearview " in line]
    assert commands[:2] == ["explain restaurant --out restaurant.html", "explain"]
    for command in commands[:2]:
        assert rearview(*command.split()).code == 0
    assert (tmp_path / "restaurant.html").exists()


def test_strong_weights_are_coloured_on_a_terminal_only(rearview, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b" not in rearview("demo").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "48;2;18;140;170m  1.000" in rearview("demo").out


def test_the_demo_runs_as_a_process_and_in_ascii(process):
    done = process("demo", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "Emma - 98.2 % Frank, 1.8 % herself" in done.stdout.decode("ascii")
    assert "-inf" in done.stdout.decode("ascii")
