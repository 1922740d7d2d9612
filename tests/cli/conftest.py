"""Running the command line inside the test process, and as a process of its own."""

import os
import subprocess
import sys
from typing import NamedTuple

import pytest

from rearview.cli import run


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def rearview(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> Result:
        code = run(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def process():
    """`rearview` as a shell would start it: the real exit code, the real streams."""

    def call(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[bytes]:
        start = code or "from rearview.cli import main; main()"
        clean = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "NO_COLOR", "PYTHONIOENCODING")}
        return subprocess.run(
            [sys.executable, "-c", start, *arguments],
            capture_output=True,
            env={**clean, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1", **environment},
            timeout=120,
        )

    return call
