"""rearview demo: the worked example, the next word, then the comparison, all of it computed."""

import dataclasses
from pathlib import Path

import pytest
from typer.main import get_command

from rearview import causal
from rearview.cli import demo
from rearview.cli.compare import app
from rearview.comparison import load
from rearview.explanation import examples
from rearview.explanation.examples import FOUR_SPEAKERS


@pytest.fixture
def first_part(rearview, monkeypatch: pytest.MonkeyPatch):
    """The demo without the training."""
    monkeypatch.setattr(demo, "_comparison", lambda out, *, quick: None)
    return lambda: rearview("demo")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory):
    """All of it, the quick variant, once: what was printed, and the folder."""
    from contextlib import redirect_stdout
    from io import StringIO

    from rearview.cli import run

    out = tmp_path_factory.mktemp("demo") / "out"
    with redirect_stdout(StringIO()) as said:
        code = run(["demo", "--quick", "--out", str(out)])
    return code, said.getvalue(), out


def test_it_shows_the_trace_and_the_mask(first_part):
    done = first_part()
    assert (done.code, done.err) == (0, "")
    assert f"{FOUR_SPEAKERS.trace().show()}\n" in done.out
    assert f"{causal().show('I love ___')}\n" in done.out


def test_a_weight_that_is_zero_looks_different_from_one_that_rounds_to_it(first_part):
    weights = first_part().out.partition("A = softmax(S + M)\n")[2]
    lines = weights.splitlines()
    first, last = (next(line for line in lines if line.startswith(f" {name} ")).split() for name in ("Frank", "Alex"))
    assert first[1:5] == ["1.000", "0", "0", "0"]
    assert last[1:5] == ["0.993", "0.000", "0.001", "0.006"]


def test_it_reads_the_weights_aloud(first_part):
    out = first_part().out
    for sentence in (
        "Frank — 100.0 % himself\n",
        "Emma — 98.2 % Frank, 1.8 % herself\n",
        "Daniel — 67.8 % Frank, 27.2 % himself, 5.0 % Emma\n",
        "Alex — 99.3 % Frank, 0.6 % himself, 0.1 % Daniel, a trace of Emma\n",
    ):
        assert sentence in out


def test_it_computes_what_it_prints(first_part, monkeypatch: pytest.MonkeyPatch):
    arguments = {**FOUR_SPEAKERS.arguments, "query": ((0.0, 0.0),) * 4}
    monkeypatch.setattr(examples, "FOUR_SPEAKERS", dataclasses.replace(FOUR_SPEAKERS, arguments=arguments))
    assert "Emma — 50.0 % Frank, 50.0 % herself\n" in first_part().out


def test_strong_weights_are_coloured_on_a_terminal_only(first_part, monkeypatch: pytest.MonkeyPatch):
    assert "\x1b" not in first_part().out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLORTERM", "truecolor")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "48;2;18;140;170m  1.000" in first_part().out


def test_the_demo_ends_with_the_report(whole: tuple[int, str, Path]):
    code, said, out = whole
    assert code == 0
    headings = [
        "1. Masked attention: only look back",
        "2. Training with the mask and without it",
        "With the mask, and without it",
        "Next",
    ]
    assert sorted(headings, key=said.index) == headings
    assert said.splitlines()[-1] == f"Report: {(out / 'report.html').resolve()}"
    assert (out / "report.html").exists()
    # Even the quick one shows it: a lower loss and a worse exam.
    found = load(out)
    assert found.without_mask.at_once.bits < found.with_mask.at_once.bits
    assert found.without_mask.exam.bits > found.with_mask.exam.bits


def test_the_commands_that_it_suggests_work(
    whole: tuple[int, str, Path], rearview, tmp_path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    commands = [line.split("rearview ")[1].split("   ")[0] for line in whole[1].splitlines() if "  rearview " in line]
    assert [command.split()[0] for command in commands] == ["studio", "explain", "compare", "mask"]
    assert rearview(*commands[1].split()).code == 0
    assert (tmp_path / "restaurant.html").exists()


def test_the_quick_demo_can_be_repeated(whole: tuple[int, str, Path]):
    command = load(whole[2]).conditions.command
    assert command.startswith("rearview compare --context 16 --layers 1 ")
    # Every option of the command is one that `rearview compare` has.
    assert get_command(app).make_context("compare", command.split()[2:]).params["new_tokens"] == 60


def test_by_default_it_writes_into_a_new_temporary_folder(rearview, tmp_path, monkeypatch: pytest.MonkeyPatch):
    seen: list[Path] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    start = "rearview.cli.compare_run.start_comparison"
    monkeypatch.setattr(start, lambda settings, given, out, before_report: seen.append(out) or 0)
    assert rearview("demo", "--quick").code == 0
    assert seen[0].parent == tmp_path
    assert seen[0].name.startswith("rearview-demo-")


def test_a_folder_with_other_files_is_not_written_to(rearview, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    done = rearview("demo", "--quick", "--out", str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert "expected a new or empty folder" in done.err


def test_the_demo_runs_as_a_process_and_in_ascii(process, tmp_path):
    done = process("demo", "--quick", "--out", str(tmp_path / "out"), PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    said = done.stdout.decode("ascii")
    assert "Emma - 98.2 % Frank, 1.8 % herself" in said
    assert "-inf" in said
    assert "without it     ##" in said
