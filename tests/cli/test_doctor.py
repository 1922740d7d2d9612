"""`rearview doctor` and `rearview --version`: what works on this machine, and how to get what does not."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from rearview import __version__
from rearview.attention.engines import ENGINES, native
from rearview.cli import doctor_run

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
NEVER_BUILT = "its library is not in this installation: it was never built"
DAMAGED = "its library is damaged: the file is not the one that was built; install rearview again"

# Runs the command in a process where some packages cannot be imported.
WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from rearview.cli import main
main()
"""


@pytest.fixture
def requirements(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Another list of requirements than that of this installation, in the form of its metadata."""

    def set_to(*lines: str) -> None:
        monkeypatch.setattr(doctor_run, "requires", lambda name: list(lines))

    return set_to


def test_it_names_the_kernel_every_engine_and_every_extra(rearview):
    done = rearview("doctor")
    assert done.code == 0
    assert done.out.startswith(f"rearview {__version__}\n  Python 3.")
    kernel = f"{native.isa()} in use" if native.library.MISSING is None else f"none: {native.library.MISSING}"
    assert f"  CPU kernel: {kernel}" in done.out
    for name in ENGINES:
        assert f"\n  {name} " in done.out
    assert "reference  works" in done.out
    assert "hopper     not here: its kernels are for NVIDIA Hopper GPUs" in done.out or "CUDA GPU" in done.out
    for extra in doctor_run.PURPOSES:
        assert f"\n  {extra} " in done.out


def test_it_knows_every_extra_of_the_package():
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert set(everything.removeprefix("rearview[").removesuffix("]").split(",")) == set(doctor_run.PURPOSES)


def test_it_says_how_to_get_what_is_missing(rearview, requirements, monkeypatch: pytest.MonkeyPatch):
    requirements(
        "torch>=2.11",
        "matplotlib>=3.9; extra == 'pictures'",
        "no-such-package>=3; extra == 'pictures'",
        "typer>=1000; extra == 'terminal'",
        "rearview[pictures]; extra == 'all'",
    )
    monkeypatch.setattr(native.library, "MISSING", NEVER_BUILT)
    monkeypatch.setattr(native.library, "KERNEL", None)
    done = rearview("doctor")
    assert done.code == 0
    assert "  pictures      needs no-such-package>=3 (pictures and .npz files)\n" in done.out
    assert "  terminal      needs typer>=1000 (the rearview command)\n" in done.out
    assert f"  CPU kernel: none: {NEVER_BUILT}\n" in done.out
    assert f"native     not here: {NEVER_BUILT}\n" in done.out
    assert done.out.endswith("  the extras: pip install 'typer>=1000' 'no-such-package>=3'\n")


@pytest.mark.parametrize(
    ("problem", "in_checkout", "advice"),
    [
        (NEVER_BUILT, True, "make native, with a C++17 compiler (on Debian and Ubuntu: apt install g++)"),
        (DAMAGED, False, "pip install --force-reinstall --no-deps --no-cache-dir rearview"),
        (
            NEVER_BUILT,
            False,
            "pip install --force-reinstall --no-deps --no-cache-dir rearview, which needs no compiler where there is a "
            "wheel for this platform; else first a C++17 compiler (on Debian and Ubuntu: apt install g++)",
        ),
    ],
)
def test_the_way_to_the_kernel_depends_on_what_is_wrong(
    problem: str, in_checkout: bool, advice: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(native.library, "MISSING", problem)
    monkeypatch.setattr(native.library, "KERNEL", None)
    monkeypatch.setattr(doctor_run, "IN_CHECKOUT", Path(__file__) if in_checkout else tmp_path / "build.py")
    assert f"the CPU kernel: {advice}" in doctor_run.examine().advice


def test_a_kernel_that_the_environment_excludes_is_found(rearview, monkeypatch: pytest.MonkeyPatch):
    if native.library.MISSING is not None:
        pytest.skip(native.library.MISSING)
    monkeypatch.setattr(native.library, "WRONG_ENVIRONMENT", True)
    monkeypatch.setenv("REARVIEW_NATIVE_ISA", "mmx")
    wrong = "REARVIEW_NATIVE_ISA: expected portable, avx2, avx512, avx512_bf16, amx or None, got 'mmx'."
    done = rearview("doctor")
    assert f"  CPU kernel: found; {wrong}\n" in done.out
    assert f"native     not here: {wrong}\n" in done.out
    assert f"  the CPU kernel: {wrong}\n" in done.out


def test_an_old_torch_is_named(requirements):
    requirements("torch>=99")
    problem = doctor_run.examine().torch_problem
    assert problem is not None
    assert problem.endswith(" is too old, torch>=99 is needed")


def test_a_folder_that_was_not_installed_has_no_extras(rearview, requirements):
    requirements()
    assert "  unknown: this rearview is imported from a folder and was not installed\n" in rearview("doctor").out


def test_json_has_the_same_facts(rearview):
    done = rearview("doctor", "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert found["rearview"] == __version__
    assert found["kernel"] == native.isa()
    assert set(found["engines"]) == set(ENGINES)
    assert found["engines"]["reference"] is None
    assert found["extras"]["pictures"]["packages"].keys() == {"matplotlib"}
    assert found["advice"] == doctor_run.examine().advice


def test_the_version_names_the_kernel_and_the_engines(rearview):
    done = rearview("--version")
    assert done.code == 0
    first, second, third, last = done.out.splitlines()
    assert first == f"rearview {__version__}"
    assert second.startswith("Python 3.")
    assert third.startswith(f"CPU kernel: {native.isa() or 'none'}")
    assert last.startswith("engines: ")
    assert "sdpa, blocks, reference; rearview doctor says what is missing" in last


def run(words: list[str], absent: set[str]) -> subprocess.CompletedProcess[str]:
    script = WITHOUT.format(absent=absent)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, env=environment, timeout=120
    )


def test_both_work_without_any_extra():
    """Also without the packages of the command line itself, which all other commands need."""
    absent = {"rich", "typer", "matplotlib", "numpy", "safetensors", "tokenizers", "starlette", "transformers"}
    done = run(["--version"], absent)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"rearview {__version__}\nPython 3.")
    done = run(["doctor"], absent)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nEngines\n" in done.stdout
    done = run(["mask", "causal()"], absent)
    assert done.returncode == 2
    assert done.stderr == (
        "rearview: The rearview command needs the package 'typer', which is not installed. "
        "Install it with: pip install typer (the extra 'terminal' of rearview includes it)\n"
    )


def test_a_torch_that_cannot_be_imported_is_the_finding():
    done = run(["doctor"], {"torch"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "it cannot be imported: No module named 'torch'" in done.stdout
    assert "Install it again: pip install --force-reinstall torch\n" in done.stdout
    done = run(["--version"], {"torch"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "CPU kernel: unknown without torch\n" in done.stdout


def test_the_version_is_stated_once():
    assert "version" in PROJECT["dynamic"]
    root = Path(__file__).parents[2]
    for path in (root / "CITATION.cff", *(root / "src").rglob("*.py")):
        if path != root / "src" / "rearview" / "__init__.py":
            assert f'"{__version__}"' not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("words", ["--version", "doctor"])
def test_a_reader_may_leave_after_the_first_line(words: str):
    command = [sys.executable, "-m", "rearview", words]
    # Unbuffered, so that a second piece would meet a closed pipe.
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == f"rearview {__version__}\n"
        started.stdout.close()
        assert started.wait(timeout=120) == 0
