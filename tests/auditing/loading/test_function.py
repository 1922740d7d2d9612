"""What a function may return, and what is said of those that cannot be used."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from rearview import causal
from rearview.auditing.loading import load
from rearview.auditing.loading.function import BuildFailed
from rearview.errors import BadArgument

MODULE = """
import torch
from torch import nn
from rearview import causal

tokens = nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 50))
frames = nn.Sequential(nn.Linear(7, 7))
nothing_known = nn.Identity()
number = 3

def model(): return tokens
def no_layers(): return nothing_known
def pair(): return frames, torch.zeros(1, 5, 7)
def three(): return 1, 2, 3
def whole(): return {"model": frames, "inputs": torch.zeros(1, 5, 7), "contract": causal(), "vocab": 9, "loss": print}
def odd(): return {"model": frames, "mdoel": 1}
def empty(): return {}
def none(): pass
def raises(): raise RuntimeError("out of luck")
def asks(size): return frames
"""


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"built_in_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    return name


def test_inputs_are_guessed_from_the_model(name: str):
    loaded = load(f"{name}:model", length=6, batch=3)
    assert list(loaded.inputs.shape) == [3, 6]
    assert loaded.inputs.dtype == torch.int64
    assert loaded.inputs.max() < 50
    assert loaded.notes == ("inputs are random: tokens [3, 6]",)
    assert list(load(f"{name}:frames").inputs.shape) == [2, 32, 7]
    assert torch.equal(load(f"{name}:model", seed=4).inputs, load(f"{name}:model", seed=4).inputs)


def test_what_is_returned_is_taken_as_it_is(name: str):
    model, inputs = load(f"{name}:pair").model, load(f"{name}:pair").inputs
    assert isinstance(model, nn.Sequential)
    assert list(inputs.shape) == [1, 5, 7]
    whole = load(f"{name}:whole")
    assert repr(whole.contract) == repr(causal())
    assert whole.options == {"vocab": 9, "loss": print}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("three", "got a tuple of 3"),
        ("odd", "any of inputs, contract, .* mdoel: no such key"),
        ("empty", "got a dict with nothing"),
        ("none", "got None"),
        ("asks", r"expected a function without arguments, got \w+:asks: missing a required argument: 'size'"),
        ("number", r"expected a function that builds the model, got \w+:number, an int"),
        ("no_layers", r"got Identity. Return \(model, inputs\)"),
        ("", "expected package.module:function"),
    ],
)
def test_what_cannot_be_used_is_said(name: str, function: str, message: str):
    with pytest.raises(BadArgument, match=message):
        load(f"{name}:{function}")


def test_what_raises_is_told_with_its_line(name: str):
    with pytest.raises(BuildFailed, match=rf"{name}:raises raised RuntimeError: out of luck \(.*{name}\.py:\d+\)"):
        load(f"{name}:raises")


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "needs_more.py").write_text("import no_such_package_at_all\n")
    (tmp_path / "broken_inside.py").write_text("1 / 0\n")
    with pytest.raises(BuildFailed, match="needs_more cannot be imported: it needs 'no_such_package_at_all'"):
        load("needs_more:build")
    with pytest.raises(
        BuildFailed, match=r"broken_inside cannot be imported: ZeroDivisionError: .*broken_inside\.py:1\)"
    ):
        load("broken_inside:build")
