"""The plugin in a pytest of its own: the fixture, the message, the lines at the end."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import rearview

TESTS = """
import torch
from torch import nn
from rearview import causal, window

def test_clean(only_looks_back):
    report = only_looks_back(nn.GRU(4, 4, batch_first=True), torch.randn(2, 8, 4))
    assert report.ok

def test_peeks(only_looks_back):
    only_looks_back(lambda x: x + x.mean(1, keepdim=True), torch.randn(2, 8), causal() & window(3))

def test_held(only_looks_back):
    only_looks_back(lambda x: x.cumsum(1) * (2 if (x * 7919 % 1000003 == 5).any() else 1), torch.randn(2, 8))

def test_other():
    pass
"""


def pytest_in(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "rearview.integrations.pytest_plugin",
            "-p",
            "no:cacheprovider",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_the_fixture_fails_with_the_report(tmp_path: Path):
    (tmp_path / "test_models.py").write_text(TESTS)
    done = pytest_in(tmp_path, "-q")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 3 passed" in done.stdout
    assert "LEAKS  <lambda>  against causal() & window(3)" in done.stdout
    # The line of the short summary says it too.
    (failed,) = [line for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert "LooksAhead: LEAKS  <lambda>  against" in failed
    assert "A mean over the time axis hears every position" in done.stdout
    # The traceback does not show the inside of the assertion.
    assert "raise LooksAhead" not in done.stdout
    summary = done.stdout.partition("rearview audits")[2]
    assert "PROVEN  GRU  against causal()  (test_models.py::test_clean)" in summary
    assert "LEAKS  <lambda>  against causal() & window(3)  (test_models.py::test_peeks)" in summary
    assert "test_other" not in summary
    # What a verdict that passes rests on.
    assert "HELD  <lambda>  against causal()  (test_models.py::test_held)\n  nothing forbidden was heard" in summary
    assert "and decides what runs, although the outputs at positions 0 to 6 must not hear all of them" in summary
    assert "PROVEN assumes that\n  - inputs have the shape [2, 8, 4]" in summary


def test_without_audits_there_are_no_lines(tmp_path: Path):
    (tmp_path / "test_plain.py").write_text(
        "import sys\ndef test_plain():\n    assert 'rearview.testing' not in sys.modules\n"
    )
    done = pytest_in(tmp_path, "-q")
    assert done.returncode == 0, done.stdout
    assert "rearview audits" not in done.stdout


def test_a_run_without_audits_does_not_import_torch(tmp_path: Path):
    (tmp_path / "test_plain.py").write_text("import sys\ndef test_plain():\n    assert 'torch' not in sys.modules\n")
    done = pytest_in(tmp_path, "-q")
    assert done.returncode == 0, done.stdout


def test_the_plugin_is_an_entry_point():
    source = (Path(rearview.__file__).parents[2] / "pyproject.toml").read_text()
    assert 'rearview = "rearview.integrations.pytest_plugin"' in source.partition("[project.entry-points.pytest11]")[2]
    found = [entry for entry in entry_points(group="pytest11") if entry.name == "rearview"]
    # A checkout may have been installed before the plugin existed, so pyproject.toml is checked too.
    assert all(entry.value == "rearview.integrations.pytest_plugin" for entry in found)
