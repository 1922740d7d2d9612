"""`rearview doctor` and `rearview --version`: what works on this machine."""

import subprocess
import sys

import pytest

from rearview import __version__
from rearview.attention.engines import ENGINES, native
from rearview.cli import doctor_run, run


def test_it_names_the_kernel_every_engine_and_every_extra(capsys: pytest.CaptureFixture[str]):
    assert run(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"rearview {__version__}\n  Python 3.")
    kernel = f"{native.isa()} in use" if native.library.MISSING is None else f"none: {native.library.MISSING}"
    assert f"  CPU kernel: {kernel}" in said
    for name in ENGINES:
        assert f"\n  {name} " in said
    assert "reference  works" in said
    for extra in doctor_run.EXTRAS:
        assert f"\n  {extra} " in said


def test_it_says_how_to_get_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(doctor_run.EXTRAS, "pictures", (("matplotlib", "no-such-package"), "pictures"))
    monkeypatch.setattr(native.library, "MISSING", "its library is not in this installation: it was never built")
    assert run(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "  pictures     needs no-such-package (pictures)" in said
    assert said.endswith("To get what is missing: pip install no-such-package\n")
    assert "  CPU kernel: none: its library is not in this installation: it was never built" in said
    assert "native     not here" in said


def test_the_version_needs_no_torch():
    script = "import sys; from rearview.cli import run; code = run(['--version']); print(code, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    first, second, last = done.stdout.splitlines()
    assert first == f"rearview {__version__}"
    assert second.endswith("the CPU kernel; rearview doctor says what works here")
    assert last == "0 False"
