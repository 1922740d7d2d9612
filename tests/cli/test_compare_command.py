"""rearview compare: from options to a report; Ctrl-C, resuming, the report again, and every error as a message."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from typer.main import get_command

from rearview.cli.compare import FOLDERS, app
from rearview.cli.compare_progress import shown_comparison
from rearview.comparison import ComparisonConfig, ComparisonEvent, ExamProgress, SideEvent, load
from rearview.training import Started, TrainingStep

TEXT = "".join(f"Line {n} of a text that is about nothing in particular.\n" for n in range(80))
SMALL = ("--context", "16", "--layers", "1", "--heads", "2", "--width", "16", "--batch", "4", "--threads", "1")
QUICK = (*SMALL, "--steps", "12", "--exam-windows", "4", "--prompts", "1", "--new-tokens", "8", "--eval-every", "6")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "my text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_it_compares_and_names_the_report(rearview, text: Path, out: Path):
    done = rearview("compare", "--text", str(text), "--out", str(out), *QUICK)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == (
        "Training the same GPT twice, with the mask and without it: 1 layer, 2 heads, width 16, context 16, 12 steps "
        "each."
    )
    assert lines[1].startswith(f"Text: {text}, {len(TEXT):,} characters; the last ")
    assert re.search(r"^step 12/12   loss with the mask \d\.\d{3}   without it \d\.\d{3}   0:00 left$", done.out, re.M)
    assert lines[-1] == f"Report: {(out / 'report.html').resolve()}"
    assert {path.name for path in out.iterdir()} == {
        "compare.json",
        "comparison.json",
        "report.html",
        "with-mask",
        "without-mask",
    }
    comparison = load(out)
    assert len(comparison.with_mask.training) == len(comparison.without_mask.training) == 12
    command = comparison.conditions.command
    assert command.startswith("rearview compare --")
    assert f"--text '{text}'" in command
    assert "--steps 12" in command
    assert "--out" not in command
    # A pipe gets no control characters, whatever the models write.
    assert not [c for c in done.out if not c.isprintable() and c not in "\n\t"]


def test_the_result_is_printed_and_the_report_written_again(rearview, text: Path, out: Path):
    first = rearview("compare", "--text", str(text), "--out", str(out), *QUICK)
    found = first.out[first.out.index("With the mask, and without it\n") :]
    page = (out / "report.html").read_text()
    (out / "report.html").unlink()
    again = rearview("compare", "--report", str(out))
    assert (again.code, again.out.lstrip("\n")) == (0, found)
    assert (out / "report.html").read_text() == page
    resumed = rearview("compare", "--resume", str(out))
    assert resumed.code == 0
    assert resumed.out == f"The comparison in {out} is finished. This is its result.\n\n{found}"


def test_both_models_can_generate(rearview, text: Path, out: Path):
    rearview("compare", "--text", str(text), "--out", str(out), *QUICK)
    for side in ("with-mask", "without-mask"):
        done = rearview("generate", str(out / side), "--prompt", "Line", "--max-tokens", "5")
        assert done.code == 0, done.err
        assert done.out.startswith("Line")


def test_a_piped_text_is_kept_for_resuming(process_with_input, out: Path):
    done = process_with_input(TEXT.encode(), "compare", "--text", "-", "--out", str(out), *QUICK)
    assert done.returncode == 0, done.stderr
    assert (out / "text.txt").read_text() == TEXT
    assert json.loads((out / "compare.json").read_text())["text"] == "-"


@pytest.fixture
def process_with_input():
    def call(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        start = "from rearview.cli import main; main()"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
        words = [sys.executable, "-c", start, *arguments]
        return subprocess.run(words, input=data, capture_output=True, env=environment, timeout=120)

    return call


def test_ctrl_c_saves_and_the_comparison_resumes(rearview, text: Path, out: Path):
    arguments = ("compare", "--text", str(text), "--out", str(out), *QUICK, "--steps", "100000", "--eval-every", "0")
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", "from rearview.cli import main; main()", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"},
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step"):
            break
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Finishing the step and saving (press again to stop at once)" in errors
    assert rest.splitlines()[-1] == f"Stopped, and saved both runs. To resume: rearview compare --resume {out}"
    steps = [max(path.name for path in (out / side).glob("step-*")) for side in ("with-mask", "without-mask")]
    assert all(step > "step-000000" for step in steps)
    # Fewer steps than asked for are left to do, so that the test ends.
    asked = json.loads((out / "compare.json").read_text())
    asked["steps"] = int(max(steps).removeprefix("step-")) + 3
    (out / "compare.json").write_text(json.dumps(asked))
    done = rearview("compare", "--resume", str(out))
    assert done.code == 0, done.err
    assert len(load(out).with_mask.training) == asked["steps"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--text", "nowhere.txt"), "rearview: nowhere.txt: does not exist."),
        (("--steps", "0"), "rearview: steps: expected an integer of at least 1, got 0."),
        (("--threads", "0"), "rearview: threads: expected an integer of at least 1, got 0."),
        (("--tokenizer", "words"), "rearview: tokenizer: expected bytes, chars or bpe, got 'words'."),
        (("--heads", "5"), "rearview: width: expected a multiple of heads"),
        (("--positions", "none"), "rearview: positions: expected \"learned\" or \"rotary\", got 'none'."),
        (("--exam-windows", "0"), "rearview: exam_windows: expected an integer of at least 1, got 0."),
        (("--context", "9999999"), "rearview: context: expected fewer tokens than the training part of the text has"),
        (("--report", "x", "--steps", "3"), "rearview: --report: expected no other option, got --steps. A"),
        (("--resume", "x", "--context", "3"), "rearview: --resume: expected no other option, got --context."),
        (("--resume", "nowhere"), "rearview: nowhere: does not exist."),
        (("--report", "nowhere"), "rearview: nowhere: does not exist."),
    ],
)  # fmt: skip
def test_errors_are_messages(rearview, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments, message: str):
    monkeypatch.chdir(tmp_path)
    done = rearview("compare", *arguments)
    assert done.code == 2
    assert done.err.startswith(message)
    assert "Traceback" not in done.err
    # Nothing was written that would prevent a second try.
    assert not list(tmp_path.glob("comparison/*"))


def test_a_folder_with_other_files_is_not_written_to(rearview, text: Path, out: Path):
    out.mkdir()
    (out / "mine.txt").write_text("precious")
    done = rearview("compare", "--text", str(text), "--out", str(out), *QUICK)
    assert done.code == 2
    assert done.err == f"rearview: out: expected a new or empty folder, got {out}, which has other files.\n"
    assert [path.name for path in out.iterdir()] == ["mine.txt"]


def test_the_options_are_the_settings_of_a_comparison():
    options = {param.name: param.default for param in get_command(app).params if param.name not in FOLDERS | {"help"}}
    defaults = {each.name: each.default for each in fields(ComparisonConfig)}
    assert options.pop("warmup") is None
    assert options == {name: defaults[name] for name in options}


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    step = TrainingStep(step=2, loss=2.5, lr=0.1, grad_norm=1.0, tokens_per_second=9.0)
    events: list[ComparisonEvent] = [
        SideEvent("with-mask", Started(0, 2, "float32")),
        SideEvent("without-mask", Started(0, 2, "float32")),
        SideEvent("with-mask", step),
        SideEvent("without-mask", step),
        ExamProgress("with-mask", "exam", 64, 64),
    ]
    assert list(shown_comparison(events)) == events
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", capsys.readouterr().out)
    for words in ("with the mask", "without it", "2/2", "loss 2.500", "exam, with the mask", "64/64"):
        assert words in shown


def test_it_runs_in_one_process(rearview, text: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    done = rearview("compare", "--text", str(text), "--out", str(out), *QUICK)
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "rearview: rearview compare: expected one process, got one of 2. Start it without torchrun. For several "
        'processes: rearview train, and again with --mask "none".\n'
    )
    assert not out.exists()
