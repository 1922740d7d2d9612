"""rearview train: from options to a folder; Ctrl-C, resume, and every error as a message."""

import io
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
import torch
from typer.main import get_command

from rearview.cli.train import app
from rearview.cli.train_run import config_of
from rearview.training import Run, RunConfig, checkpoints, model_folder, read_metrics
from rearview.training.processes.world import LAUNCHER, STORE

TEXT = "".join(f"Line {n} of a text that is about nothing in particular.\n" for n in range(80))
SMALL = ("--context", "16", "--layers", "1", "--heads", "2", "--width", "16", "--batch", "4")
QUICK = (*SMALL, "--steps", "12", "--eval-every", "4", "--sample-every", "6", "--save-every", "4", "--threads", "1")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_it_trains_and_lists_its_files(rearview, text: Path, out: Path):
    done = rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    assert (done.code, done.err) == (0, "")
    first = done.out.splitlines()[0]
    assert first.startswith("GPT with ")
    assert f"Text with {len(TEXT):,} characters in 1 document: " in first
    assert "step  4/12  validation loss " in done.out
    assert "step  6/12  sample:\n" in done.out
    assert f"step 12/12  saved {out / 'step-000012'}" in done.out
    assert f'To generate text: rearview generate {out} --prompt "The "' in done.out
    # A pipe gets no control characters, whatever the model writes.
    assert not [c for c in done.out if not c.isprintable() and c not in "\n\t"]
    assert {path.name for path in out.iterdir()} == {"metrics.jsonl", "loss.svg", "step-000008", "step-000012"}
    assert [record["step"] for record in read_metrics(out) if "loss" in record] == list(range(1, 13))


def test_there_is_a_default_text(rearview, out: Path):
    done = rearview("train", "--out", str(out), *SMALL, "--steps", "2", "--sample-every", "0")
    assert done.code == 0
    assert " documents: " in done.out.splitlines()[0]


@pytest.mark.parametrize(
    "options",
    [
        ("--model", "bert", "--tokenizer", "chars"),
        ("--model", "t5", "--tokenizer", "bpe", "--vocab-size", "300"),
        ("--mask", "none"),
        ("--mask", "causal() & window(4)", "--positions", "rotary", "--kv-heads", "1", "--dropout", "0.1"),
        ("--accumulate", "2", "--checkpointing", "--precision", "float32", "--clip", "0", "--sample-prompt", "Line"),
    ],
    ids=" ".join,
)
def test_every_kind_of_run_resumes(options: tuple[str, ...], rearview, text: Path, out: Path):
    begun = rearview("train", "--text", str(text), "--out", str(out), *QUICK, *options)
    assert (begun.code, begun.err) == (0, "")
    done = rearview("train", "--resume", str(out), "--steps", "16")
    assert (done.code, done.err) == (0, "")
    assert f"Resuming from {out / 'step-000012'}.\n" in done.out
    assert model_folder(out).name == "step-000016"
    if "--mask" in options:
        config = json.loads((model_folder(out) / "config.json").read_text())
        assert config["mask"] == ("full()" if "none" in options else "causal() & window(4)")


def test_a_resumed_run_is_the_same(rearview, text: Path, tmp_path: Path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    rearview("train", "--text", str(text), "--out", str(whole), *QUICK)
    rearview("train", "--text", str(text), "--out", str(parts), *QUICK)
    for later in checkpoints(parts)[1:]:
        for file in later.iterdir():
            file.unlink()
        later.rmdir()
    # Options that say the same again are no change.
    done = rearview("train", "--resume", str(parts), "--width", "16")
    assert done.code == 0, done.err
    assert (parts / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_standard_input_is_kept(rearview, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TEXT.encode())))
    done = rearview("train", "--text", "-", "--out", str(out), *QUICK, "--separator", "7 of")
    assert (done.code, done.err) == (0, "")
    assert " in 9 documents: " in done.out
    assert (out / "text.txt").read_text() == TEXT
    # Nothing is piped now.
    done = rearview("train", "--resume", str(out), "--steps", "16")
    assert (done.code, done.err) == (0, "")


def started(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}
    code = "from rearview.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "train", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


LONG = (*SMALL, "--eval-every", "0", "--sample-every", "0", "--save-every", "0", "--threads", "1")


@pytest.mark.skipif(os.name == "nt", reason="signals are sent")
def test_ctrl_c_saves_and_prints_the_command_that_resumes(rearview, text: Path, out: Path):
    running = started("--text", str(text), "--out", str(out), *LONG, "--steps", "1000000", "--warmup", "5")
    wait_for_steps(running)
    running.send_signal(signal.SIGINT)
    said, complained = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "Finishing the step and saving (press again to stop at once)" in complained
    last = checkpoints(out)[-1]
    step = int(last.name.removeprefix("step-"))
    assert step > 0
    assert f"Stopped after step {step}, and saved. To resume: rearview train --resume {out}\n" in said
    done = rearview("train", "--resume", str(out), "--steps", str(step + 3))
    assert (done.code, done.err) == (0, "")
    assert [record["step"] for record in read_metrics(out) if "loss" in record] == list(range(1, step + 4))


@pytest.mark.skipif(os.name == "nt", reason="signals are sent")
def test_a_second_ctrl_c_stops_at_once(rearview, text: Path, out: Path):
    slow = (
        "--context",
        "128",
        "--layers",
        "4",
        "--width",
        "256",
        "--batch",
        "256",
        "--threads",
        "1",
        "--sample-every",
        "0",
    )
    running = started("--text", str(text), "--out", str(out), *slow)
    # The checkpoint of step 0 is there, and the first step takes seconds.
    while not checkpoints(out):
        time.sleep(0.05)
        assert running.poll() is None, running.communicate()[1]
    running.send_signal(signal.SIGINT)
    assert running.stderr is not None
    while "press again" not in (line := running.stderr.readline()):
        assert line
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert [path.name for path in checkpoints(out)] == ["step-000000"]
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "step-000000"]


def wait_for_steps(running: subprocess.Popen[str]) -> None:
    """Until a line about a step is out."""
    assert running.stdout is not None
    while "loss" not in (line := running.stdout.readline()):
        assert line, running.communicate()[1]


def test_errors_are_messages(rearview, text: Path, out: Path, tmp_path: Path):
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9 " * 99)
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    for arguments, message in (
        (("--text", str(tmp_path / "nowhere")), "nowhere: does not exist."),
        (
            ("--text", str(tmp_path / "latin.txt")),
            "byte 3 (0xe9) cannot be decoded. If it has another",
        ),
        (("--text", str(tmp_path / "empty.txt")), "empty.txt: is empty: there is no text to train on."),
        (("--text", str(tmp_path / "short.txt")), "context: expected fewer tokens than the training part of the text"),
        (("--text", str(text), "--mask", "cauzal()"), "causal"),
        (("--text", str(text), "--model", "rnn"), "model: expected gpt, bert or t5, got 'rnn'"),
        (("--text", str(text), "--heads", "3"), "width: expected a multiple of heads = 3, got 128"),
        (("--text", str(text), "--threads", "0"), "threads: expected an integer of at least 1, got 0"),
        (("--text", str(text), "--device", "gpu"), "device: expected a device that torch can use here, got 'gpu'"),
        (
            ("--text", str(text), "--tokenizer", "chars", "--vocab-size", "9"),
            "the tokenizer chars determines it, got 9.",
        ),
        (("--text", str(text), "--steps", "0"), "steps: expected an integer of at least 1, got 0"),
        (("--text", str(text), "--positions", "sine"), 'positions: expected "learned" or "rotary", got \'sine\''),
    ):
        done = rearview("train", "--out", str(out), *arguments)
        assert done.code == 2, arguments
        assert message in done.err, arguments
        assert not out.exists(), arguments


def test_a_folder_without_a_run_cannot_be_resumed(rearview, tmp_path: Path):
    done = rearview("train", "--resume", str(tmp_path))
    assert done.code == 2
    assert f"run: expected a folder with checkpoints of rearview train, got {tmp_path}, which has none." in done.err


def test_a_run_keeps_its_settings(rearview, text: Path, out: Path, tmp_path: Path):
    rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    for arguments, message in (
        (
            ("--text", str(text), "--out", str(out)),
            f"out: expected a folder without a run, got {out}, which has step-000012. Resume that run",
        ),
        (("--resume", str(out), "--steps", "11"), "steps: expected at least 12, the number of steps that"),
        (
            ("--resume", str(out), "--width", "32"),
            f"width: expected 16, as in the run in {out}, got 32. ",
        ),
        (
            ("--resume", str(out), "--out", str(tmp_path / "other")),
            "--out: expected no other folder: a resumed run stays in its own, got ",
        ),
        (("--resume", str(out / "step-000099")), "which does not exist"),
    ):
        done = rearview("train", *arguments)
        assert done.code == 2, arguments
        assert message in done.err, done.err
    text.write_text(TEXT + "And a line more: {}.\n")
    done = rearview("train", "--resume", str(out), "--steps", "16")
    assert done.code == 2
    assert f"text: expected the text of the run in {out} " in done.err


def test_a_finished_run_says_so(rearview, text: Path, out: Path):
    rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    (out / "loss.svg").unlink()
    done = rearview("train", "--resume", str(out))
    assert (done.code, done.err) == (0, "")
    assert "All 12 steps are done. To train further, give a larger --steps.\n" in done.out
    assert (out / "loss.svg").exists()


def test_a_folder_that_another_process_writes_to_is_refused(rearview, text: Path, out: Path):
    run = Run.start(RunConfig(text=str(text), steps=5, context=16, layers=1, heads=2, width=16, threads=1), out)
    events = run.train()
    next(events)
    for arguments in (("--text", str(text), "--out", str(out), *QUICK), ("--resume", str(out))):
        done = rearview("train", *arguments)
        assert done.code == 2
        assert done.err.startswith(f"rearview: {out}: process {os.getpid()} on ")
        assert done.err.endswith(" is writing to this folder. Wait until it ends, or stop it.\n")
    events.close()


def test_the_options_are_the_settings_of_a_run():
    """An option without a setting would be ignored; another default would make the command differ from Python."""
    options = {param.name: param.default for param in get_command(app).params}
    for name in ("out", "resume", "processes", "help"):
        options.pop(name, None)
    defaults = {each.name: each.default for each in fields(RunConfig)}
    assert options.keys() <= defaults.keys()
    # By default it depends on the number of steps.
    assert options.pop("warmup") is None
    assert options == {name: defaults[name] for name in options}
    values = {**options, "warmup": None}
    assert config_of({**values, "steps": 50}).warmup == 5
    assert config_of(values) == RunConfig()


def test_a_damaged_checkpoint_names_an_intact_one(rearview, text: Path, out: Path):
    rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    path = out / "step-000012" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    done = rearview("train", "--resume", str(out), "--steps", "16")
    good = out / "step-000008"
    assert done.code == 2
    assert f"rearview: {path}: is damaged" in done.err
    assert f"rearview train --resume {good}\n" in done.err
    assert rearview("train", "--resume", str(good)).code == 0
    assert model_folder(out).name == "step-000012"


def test_without_matplotlib_there_is_one_remark(rearview, text: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    assert done.code == 0
    assert done.err.count("rearview: no picture of the loss: A picture of the loss needs the package 'matplotlib'") == 1
    assert "loss.svg" not in done.out


def test_tensorboard_is_an_option(rearview, text: Path, out: Path):
    pytest.importorskip("tensorboard")
    done = rearview("train", "--text", str(text), "--out", str(out), *QUICK, "--tensorboard")
    assert done.code == 0
    assert list((out / "tensorboard").glob("events.out.tfevents.*"))


def test_a_terminal_gets_a_bar(rearview, text: Path, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    done = rearview("train", "--text", str(text), "--out", str(out), *QUICK)
    assert done.code == 0
    assert "\x1b[" in done.out
    assert "12/12" in done.out
    assert "tokens/s" in done.out


TWO = ("--processes", "2", "--threads", "1", "--precision", "float32")


def wait_for_checkpoint(running: subprocess.Popen[str], out: Path, step: int) -> None:
    while not any(int(path.name.removeprefix("step-")) >= step for path in checkpoints(out)):
        time.sleep(0.05)
        assert running.poll() is None, running.communicate()[1]


@pytest.mark.skipif(sys.platform != "linux", reason="the processes are found in /proc")
def test_a_killed_process_ends_the_others_and_the_run_goes_on(rearview, text: Path, out: Path):
    """At another number of processes: here in one."""
    options = ("--text", str(text), "--out", str(out), *SMALL, "--steps", "1000000", "--warmup", "5", "--shard", *TWO)
    running = started(*options, "--eval-every", "0", "--sample-every", "0", "--save-every", "2")
    wait_for_checkpoint(running, out, step=4)
    pids = list(map(int, Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()))
    killed = time.monotonic()
    os.kill(pids[1], signal.SIGKILL)
    _, complained = running.communicate(timeout=60)
    assert time.monotonic() - killed < 60
    assert running.returncode == 2
    last = checkpoints(out)[-1]
    assert complained.splitlines() == [
        "rearview: rank 0 stops training: another rank has ended or cannot be reached. The last checkpoint is intact.",
        f"rearview: rank 1 (process {pids[1]}) was ended by SIGKILL, so the others were stopped. The last "
        f"checkpoint is {last}. To resume: rearview train --resume {out} --processes 2",
    ]
    step = int(last.name.removeprefix("step-"))
    done = rearview("train", "--resume", str(out), "--steps", str(step + 2))
    assert (done.code, done.err) == (0, "")
    assert [record["step"] for record in read_metrics(out) if "loss" in record] == list(range(1, step + 3))


def launched(tmp_path: Path, code: str) -> subprocess.CompletedProcess[str]:
    """`launch` two processes that run this code."""
    (tmp_path / "ranks.py").write_text(code)
    launching = "import sys\nfrom rearview.training.processes.launcher import launch\n"
    launching += "try: sys.exit(launch('ranks', [], processes=2))\nexcept Exception as error: sys.exit(repr(error))"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    command = [sys.executable, "-c", launching]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def test_a_traceback_of_a_process_is_named(tmp_path: Path):
    """The others say only that they have lost it, and they may say so last."""
    done = launched(tmp_path, "import os, time\nif os.environ['RANK'] == '1': 1 / 0\ntime.sleep(100)")
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"RankFailed\('rank 1 \(process \d+\) ended with the traceback above, so the others were stopped\.'\)", last
    )


LOST = """
import fcntl, os, signal, sys, time
lock, ready = open("lock", "w"), "ready"
if os.environ["RANK"] == "1":
    fcntl.flock(lock, fcntl.LOCK_EX)
    open(ready, "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(ready):
    time.sleep(0.01)
fcntl.flock(lock, fcntl.LOCK_EX)
sys.exit(2)
"""


@pytest.mark.skipif(os.name == "nt", reason="a process is killed")
def test_a_process_that_was_killed_is_named_before_those_that_lost_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Rank 0 ends as soon as rank 1 is gone, so that the launcher finds both at once."""
    monkeypatch.chdir(tmp_path)
    done = launched(tmp_path, LOST)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert re.fullmatch(
        r"RankFailed\('rank 1 \(process \d+\) was ended by SIGKILL, so the others were stopped\.'\)", last
    )


REFUSES = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(2)
time.sleep(100)
"""


def test_processes_that_the_launcher_stops_are_not_blamed(tmp_path: Path):
    """Rank 1 has said why it ends; rank 0 is ended by SIGTERM then."""
    done = launched(tmp_path, REFUSES)
    assert (done.returncode, done.stderr) == (2, "")


@pytest.mark.parametrize("folder", [".", "removed"])
def test_a_process_does_not_wait_for_others_that_nobody_starts(folder: str, text: Path, out: Path, tmp_path: Path):
    """The command that started it was killed before it started the next, or was stopped and has cleaned up."""
    alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    alone |= {STORE: str(tmp_path / folder / "store"), LAUNCHER: "-1"}
    done = subprocess.run(
        [sys.executable, "-m", "rearview", "train", "--text", str(text), "--out", str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, **alone, "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    message = "rearview: rank 0 stops before the first step: the command that started it has ended.\n"
    assert (done.returncode, done.stderr) == (2, message)
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_said_once(process, text: Path, out: Path):
    done = process("train", "--text", str(text), "--out", str(out), *QUICK, "--processes", "2", "--device", "cuda")
    assert done.returncode == 2
    assert done.stderr.decode() == (
        "rearview: device: expected one GPU per process of a machine, got 0 for 2 processes. Start fewer processes, or "
        "give --device cpu.\n"
    )


@pytest.mark.skipif(os.name == "nt", reason="signals are sent")
def test_ctrl_c_saves_in_several_processes(text: Path, out: Path):
    running = started("--text", str(text), "--out", str(out), *LONG, "--steps", "1000000", "--warmup", "5", *TWO)
    wait_for_steps(running)
    running.send_signal(signal.SIGINT)
    said, complained = running.communicate(timeout=60)
    assert running.returncode == 130
    # One process speaks for all.
    assert complained.splitlines() == ["", "Finishing the step and saving (press again to stop at once)"]
    step = int(checkpoints(out)[-1].name.removeprefix("step-"))
    assert step > 0
    assert f"Stopped after step {step}, and saved. To resume: rearview train --resume {out}\n" in said


def watched(tmp_path: Path) -> dict[str, str]:
    """An environment in which one of several processes prints a line when its interpreter ends."""
    at_exit = "import atexit, os\nif 'RANK' in os.environ: atexit.register(print, 'the interpreter ended')\n"
    (tmp_path / "sitecustomize.py").write_text(at_exit)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    chosen = {"OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": path}
    return {**os.environ, **chosen}


def test_torchrun_starts_it_too(text: Path, out: Path, tmp_path: Path):
    # Processes that have trained end at once: threads of gloo that are left abort an interpreter that ends.
    environment = watched(tmp_path)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "rearview"]
    done = subprocess.run(
        [*command, "train", "--text", str(text), "--out", str(out), *QUICK],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 processes on cpu; each has a copy of the model.\nGPT with ")
    # Rank 0 alone prints: three checkpoints, once each.
    assert (done.stdout.count("Done."), done.stdout.count("  saved ")) == (1, 3)
    assert "the interpreter ended" not in done.stdout


@pytest.mark.skipif(os.name == "nt", reason="the size of files is limited")
def test_processes_that_cannot_save_end_at_once_too(text: Path, out: Path, tmp_path: Path):
    """An abort after the message would be reported as a second failure."""
    import resource

    done = subprocess.run(
        [sys.executable, "-m", "rearview", "train", "--text", str(text), "--out", str(out), *QUICK, *TWO],
        capture_output=True,
        text=True,
        env=watched(tmp_path),
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )
    assert done.returncode == 2
    assert done.stderr == (
        f"rearview: The checkpoint of step 0 could not be written to {out}: rank 0: File too large. No part of it was "
        "left. Free some space, or choose another folder with --out.\n"
    )
    assert "the interpreter ended" not in done.stdout
