"""rearview audit: exit codes, files, JSON, and clear words for what cannot be audited."""

import json
import textwrap
from pathlib import Path

import pytest

from rearview.audit import Report, Witness

MODELS = """
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
    assert f"{models}.py:12" in done.out
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


def test_what_cannot_be_written_is_said_first(rearview, models: str):
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
        ("nothing_here:build", "TARGET: expected a module that can be imported, got nothing_here. Looked in "),
        ("{models}:cleen", "expected a function of {models}, got 'cleen'. Did you mean clean?"),
        ("./nowhere", "TARGET: expected package.module:function, or a folder, got ./nowhere, which is not there."),
        ("{models}", "TARGET: expected package.module:function, or a folder, got '{models}'."),
        ("{models}.py", "got the file {models}.py"),
    ],
)
def test_what_is_not_there_is_named(rearview, models: str, target: str, message: str):
    done = rearview("audit", target.format(models=models))
    assert (done.code, done.out) == (2, "")
    assert message.format(models=models) in done.err
    assert "Traceback" not in done.err


def test_inputs_of_its_own_are_not_resized(rearview, models: str):
    done = rearview("audit", f"{models}:clean", "--length", "9")
    assert done.code == 2
    assert f"--length: expected a model without inputs of its own, got {models}:clean, which returns them" in done.err


def test_in_a_pipe_there_is_nothing_but_the_report(process, models: str, tmp_path: Path):
    done = process("audit", f"{models}:clean", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"\x1b" not in done.stdout


def test_a_large_model_says_what_it_will_take(rearview, models: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rearview.cli.audit.LARGE", 10)
    done = rearview("audit", f"{models}:clean")
    assert done.err.startswith("rearview: this will take about ")
    assert "multiplications and additions\nrearview: [1/" in done.err
    assert done.code == 0
