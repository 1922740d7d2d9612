"""A shared library that was cut short is told from a whole one before it is loaded."""

import sys
from pathlib import Path

import pytest

from rearview.attention.engines.native import library
from rearview.attention.engines.native.elf import is_whole


@pytest.mark.skipif(sys.platform != "linux", reason="ELF is the format of Linux")
@pytest.mark.parametrize("kept", [0, 10, 63, 64, 300, 0.3, 0.9, -1, None])
def test_a_library_that_was_cut_short_is_not_whole(kept: float | None, tmp_path: Path):
    data = Path(sys.executable).resolve().read_bytes()
    end = len(data) if kept is None else int(kept * len(data)) if 0 < kept < 1 else int(kept)
    (tmp_path / "cut.so").write_bytes(data[:end])
    assert is_whole(tmp_path / "cut.so") == (kept is None)


def test_the_engine_says_that_its_library_is_damaged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    path = tmp_path / "librearview.so"
    path.write_bytes(Path(sys.executable).resolve().read_bytes()[:5000])
    monkeypatch.setattr(library, "PATH", path)
    assert library._load() == (None, "its library is damaged: the file is shorter than it says; install rearview again")
