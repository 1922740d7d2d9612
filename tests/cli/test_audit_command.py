"""rearview audit: exit codes, files, JSON, and errors for what cannot be audited."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rearview.auditing import Report, Witness

MODELS = """
import time
import torch
from torch import nn

class Peeks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 6), nn.Linear(6, 20)

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + x.mean(1, keepdim=True))

def peeks():
    return Peeks()

def clean():
    return nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4)

def still():
    return {"model": nn.Linear(4, 4), "inputs": torch.randn(2, 8, 4)}

def windowed():
    from rearview import causal, window
    return {"model": nn.GRU(4, 4, batch_first=True), "inputs": torch.randn(2, 8, 4), "contract": causal() & window(3)}

def held():
    def gated(x):
        return x.cumsum(1) * (2.0 if bool(((x[:, :-1] == 3) & (x[:, 1:] == 11)).any()) else 1.0)
    inputs = torch.randint(0, 7, (2, 8)) * 30
    return {"model": gated, "inputs": inputs, "vocab": 5000, "call": lambda model, x: model(x.float())}

def scripted():
    return torch.jit.script(Peeks())

def fails():
    class Fails(nn.Linear):
        def forward(self, x):
            raise RuntimeError("out of cheese")
    return Fails(4, 4)

def strange():
    class Strange(nn.GRU):
        def state_dict(self, *args, **kwargs):
            raise KeyError("no state")
    return Strange(4, 4, batch_first=True), torch.randn(2, 8, 4)

def slow():
    class Slow(nn.GRU):
        def forward(self, x):
            time.sleep(0.1)
            return super().forward(x)
    return Slow(4, 4, batch_first=True), torch.randn(2, 8, 4)

def leaves():
    class Leaves(nn.GRU):
        def forward(self, x):
            raise SystemExit(0)
    return Leaves(4, 4, batch_first=True), torch.randn(2, 8, 4)

def leaves_at_once():
    raise SystemExit(0)

def other_call():
    call = lambda model, x: model(x.transpose(0, 1))[0].transpose(0, 1)
    return {"model": nn.GRU(4, 4), "inputs": torch.randn(2, 8, 4), "call": call}
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the current folder, under a name that no other test has imported."""
    name = f"models_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODELS))
    monkeypatch.chdir(tmp_path)
    return name


def test_a_leak_ends_with_one_and_names_the_place(rearview, models: str):
    done = rearview("audit", f"{models}:peeks", "--length", "8")
    assert done.code == 1
    assert done.out.startswith("LEAKS  Peeks  against causal()\n")
    assert f"{models}.py:13" in done.out
    assert "A mean over the time axis hears every position" in done.out
    assert "- inputs are random: tokens [2, 8]" in done.out


@pytest.mark.parametrize(
    ("function", "code", "verdict"),
    [("clean", 0, "PROVEN"), ("still", 3, "INCONCLUSIVE"), ("windowed", 1, "LEAKS"), ("other_call", 0, "PROVEN")],
)
def test_the_exit_code_is_the_verdict(rearview, models: str, function: str, code: int, verdict: str):
    done = rearview("audit", f"{models}:{function}")
    assert (done.code, done.out.split()[0]) == (code, verdict)
    assert done.err == ""


def test_strict_the_command_passes_only_what_is_proven(rearview, models: str):
    assert rearview("audit", f"{models}:clean", "--must-prove").code == 0
    assert rearview("audit", f"{models}:held").code == 0
    done = rearview("audit", f"{models}:held", "--must-prove")
    assert done.code == 3
    assert "It must be proven, so this does not pass." in done.out
    assert "decides what runs, although the outputs at positions 0 to 6 must not hear all of them" in " ".join(
        done.out.split()
    )
    assert rearview("audit", f"{models}:peeks", "--must-prove").code == 1
    whole = json.loads(rearview("audit", f"{models}:held", "--must-prove", "--json").out)
    assert (whole["verdict"], whole["exit_code"], whole["must_prove"]) == ("HELD", 3, True)


def test_a_gate_is_one_line_and_a_file(rearview, models: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    done = rearview("audit", f"{models}:clean", "--gate", "--must-prove", "--budget", "60", "--out", "gate.json")
    assert done.code == 0
    line, *rest = done.out.splitlines()
    assert rest == []
    assert line.startswith("PROVEN  GRU  against causal()  batch 2  time 8  weights ")
    whole = json.loads((tmp_path / "gate.json").read_text())
    assert (whole["verdict"], whole["exit_code"], whole["must_prove"]) == ("PROVEN", 0, True)
    assert whole["fingerprint"]["weights"][:12] in line
    assert line.endswith(f"  assuming: {'; '.join(whole['proof']['assumptions'])}")
    assert len(whole["fingerprint"]["code"]) == 64
    assert whole["proof"]["assumptions"]
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    done = rearview("audit", f"{models}:peeks", "--gate", "-n", "8")
    assert done.code == 1
    annotation = done.out.splitlines()[-1]
    assert annotation.startswith(f"::error file={models}.py,line=13,title=LEAKS%3A Peeks against causal()::Position ")
    assert "::error" not in rearview("audit", f"{models}:clean", "--gate").out
    monkeypatch.delenv("GITHUB_ACTIONS")
    (line,) = rearview("audit", f"{models}:peeks", "--gate", "-n", "8").out.splitlines()
    assert line.startswith("LEAKS  Peeks  against causal()")
    assert " moved by " in line
    assert "::error" in rearview("audit", f"{models}:peeks", "--annotate", "-n", "8").out


def test_a_budget_is_kept_and_said(rearview, models: str):
    done = rearview("audit", f"{models}:slow", "--budget", "1.5")
    assert done.code == 3
    assert "the time budget of 1.5 s was spent before these checks: " in " ".join(done.out.split())
    done = rearview("audit", f"{models}:clean", "--budget", "0")
    assert (done.code, done.err) == (2, "rearview: budget: expected a number of seconds above 0, or None, got 0.0.\n")


def test_two_reports_are_compared(rearview, models: str, tmp_path: Path):
    for name, function in (("a.json", "clean"), ("b.json", "windowed"), ("c.json", "clean")):
        rearview("audit", f"{models}:{function}", "--gate", "--out", name)
    done = rearview("audit", "--diff", "a.json", "b.json")
    assert done.code == 1
    assert done.out.splitlines()[:2] == [
        "verdict: PROVEN -> LEAKS",
        "contract: causal() -> causal() & window(3)",
    ]
    assert rearview("audit", "--diff", "b.json", "a.json").code == 0
    done = rearview("audit", "--diff", "a.json", "c.json")
    assert (done.code, done.out) == (0, "The reports say the same.\n")
    done = rearview("audit", "--diff", "a.json", "none.json")
    assert (done.code, done.err) == (2, "rearview: none.json: there is no such file\n")
    (tmp_path / "bad.json").write_text("{}")
    assert rearview("audit", "--diff", "a.json", "bad.json").code == 2
    done = rearview("audit", f"{models}:clean", "--diff", "a.json", "b.json")
    assert done.code == 2
    assert "MODULE:FUNCTION|DIR: expected nothing beside --diff, got" in done.err
    done = rearview("audit")
    assert done.code == 2
    assert "MODULE:FUNCTION|DIR: expected package.module:function, or a folder, got nothing." in done.err


@pytest.mark.parametrize("function", ["fails", "strange"])
def test_a_model_that_fails_is_no_leak(rearview, models: str, function: str):
    done = rearview("audit", f"{models}:{function}")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert ("out of cheese" if function == "fails" else "KeyError: 'no state'") in done.err


@pytest.mark.parametrize("function", ["leaves", "leaves_at_once"])
def test_a_model_that_exits_is_no_pass(rearview, models: str, function: str):
    done = rearview("audit", f"{models}:{function}", "--gate")
    assert (done.code, done.out) == (2, "")
    assert done.err == "rearview: the model, or the function that builds it, called sys.exit(0)\n"


def test_a_closed_output_is_no_leak(process, models: str):
    code = "import os; os.close(1); import sys; sys.stdout = None; from rearview.cli import main; main()"
    done = process("audit", f"{models}:clean", "--gate", code=code)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_torchscript_is_audited(rearview, models: str):
    done = rearview("audit", f"{models}:scripted", "-n", "8")
    assert done.code == 1
    assert done.out.startswith("LEAKS  RecursiveScriptModule  against causal()\n")


def test_a_file_that_cannot_be_written_is_no_leak(rearview, models: str, tmp_path: Path):
    for name in ("report.json", "leak.npz"):
        (tmp_path / name).mkdir()
        option = "--out" if name.endswith("json") else "--witness"
        done = rearview("audit", f"{models}:peeks", "-n", "8", option, name)
        assert done.code == 2
        assert "path: expected a file that can be written, got Is a directory" in done.err
        assert [path.name for path in tmp_path.glob(".*part")] == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
def test_a_full_disk_is_no_leak(models: str, tmp_path: Path):
    start = [sys.executable, "-c", "from rearview.cli import main; main()", "audit", f"{models}:peeks", "-n", "8"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(start, stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 2
    assert done.stderr == (
        "rearview: the standard output cannot be written: No space left on device. What was printed is incomplete.\n"
    )


def test_a_file_is_not_a_module(rearview, models: str):
    done = rearview("audit", f"{models}.py:clean")
    assert done.code == 2
    expected = f"expected package.module:function, got the file {models}.py:clean. Did you mean {models}:clean?"
    assert done.err == f"rearview: MODULE:FUNCTION|DIR: {expected}\n"


def test_a_contract_is_a_mask(rearview, models: str):
    done = rearview("audit", f"{models}:clean", "--contract", "causal() & window(2)")
    assert done.code == 1
    assert done.out.startswith("LEAKS  GRU  against causal() & window(2)\n")
    done = rearview("audit", f"{models}:windowed", "-c", "causal()")
    assert done.code == 2
    assert "--contract: expected one contract, got causal(), and causal() & window(3) from" in done.err
    assert rearview("audit", f"{models}:clean", "--contract", "cause()").code == 2


def test_files_are_written_in_every_form(rearview, models: str, tmp_path: Path):
    names = ["report.html", "report.json", "report.txt"]
    out = [word for name in names for word in ("--out", name)]
    done = rearview("audit", f"{models}:peeks", "-n", "8", *out, "--witness", "leak.npz")
    assert done.err == "".join(f"rearview: wrote {name}\n" for name in [*names, "leak.npz"])
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert Report.from_json((tmp_path / "report.json").read_text()).verdict.value == "LEAKS"
    assert (tmp_path / "report.txt").read_text().startswith("LEAKS")
    assert Witness.load(tmp_path / "leak.npz").amount > 0
    done = rearview("audit", f"{models}:clean", "--witness", "none.npz")
    assert done.code == 0
    assert done.err == "rearview: no leak, so there is no witness to write to none.npz\n"


def test_a_name_that_cannot_be_written_to_is_refused_first(rearview, models: str):
    for option, name in (("--out", "report.pdf"), ("--out", "nowhere/report.html"), ("--witness", "leak.txt")):
        done = rearview("audit", f"{models}:peeks", option, name)
        assert (done.code, done.out) == (2, "")
        assert "path: expected" in done.err


def test_json_is_only_json(rearview, models: str):
    done = rearview("audit", f"{models}:clean", "--json", "--seed", "3")
    whole = json.loads(done.out)
    assert (whole["verdict"], whole["exit_code"], whole["seed"]) == ("PROVEN", 0, 3)


def test_full_is_full(rearview, models: str):
    quick, full = (json.loads(rearview("audit", f"{models}:clean", "--json", *more).out) for more in ((), ("--full",)))
    assert (quick["mode"], full["mode"]) == ("quick", "full")
    assert len(full["checks"]) > len(quick["checks"])


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            "nothing_here:build",
            "MODULE:FUNCTION|DIR: expected a module that can be imported, got nothing_here. Looked in ",
        ),
        ("{models}:cleen", "expected a function of {models}, got 'cleen'. Did you mean clean?"),
        (
            "./nowhere",
            "MODULE:FUNCTION|DIR: expected package.module:function, or a folder, got ./nowhere, which does not exist.",
        ),
        ("{models}", "MODULE:FUNCTION|DIR: expected package.module:function, or a folder, got '{models}'."),
        ("{models}.py", "got the file {models}.py"),
    ],
)
def test_a_missing_target_is_named(rearview, models: str, target: str, message: str):
    done = rearview("audit", target.format(models=models))
    assert (done.code, done.out) == (2, "")
    assert message.format(models=models) in done.err
    assert "Traceback" not in done.err


def test_inputs_of_the_function_are_not_resized(rearview, models: str):
    done = rearview("audit", f"{models}:clean", "--length", "9")
    assert done.code == 2
    assert f"--length: expected a function that returns no inputs, got {models}:clean, which returns them" in done.err


def test_a_pipe_gets_only_the_report(process, models: str, tmp_path: Path):
    done = process("audit", f"{models}:clean", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_a_large_model_gets_an_estimate(rearview, models: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rearview.cli.audit_run.LARGE", 10)
    done = rearview("audit", f"{models}:clean")
    assert done.err.startswith("rearview: this will take about ")
    assert "multiplications and additions\nrearview: [1/" in done.err
    assert done.code == 0
