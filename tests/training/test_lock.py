"""One process per folder: a second one is refused, and the first is named."""

import os
import platform
import re
import signal
import subprocess
import sys
from io import FileIO
from pathlib import Path

import pytest

from rearview.errors import BadArgument, RearviewError
from rearview.training import FolderInUse, lock
from rearview.training.lock import NAME, FolderLock, check_unlocked
from rearview.training.run_folder import RunFolder
from tests.training.small_run import small_run, until_saved

pytestmark = pytest.mark.skipif(lock.fcntl is None, reason="there is no flock on this system")

HOLD = """
import sys
from io import FileIO
from pathlib import Path
from rearview.training.lock import FolderLock
with FolderLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Another process that holds the folder until a line is written to it."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_the_first_is_named(holder: subprocess.Popen[str], tmp_path: Path):
    message = (
        f"{tmp_path}: process {holder.pid} on {platform.node()} is writing to this folder. "
        "Wait until it ends, or stop it."
    )
    for attempt in (lambda: list(small_run(tmp_path)), lambda: list(small_run(tmp_path, resume=tmp_path))):
        with pytest.raises(FolderInUse) as error:
            attempt()
        assert str(error.value) == message
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    holder.communicate("end\n", timeout=60)
    assert not list(tmp_path.iterdir())
    until_saved(small_run(tmp_path), step=0)


def test_the_lock_ends_with_a_process_that_is_killed(holder: subprocess.Popen[str], tmp_path: Path):
    holder.send_signal(signal.SIGKILL)
    holder.wait(timeout=60)
    assert (tmp_path / NAME).exists()
    check_unlocked(tmp_path)
    with FolderLock(tmp_path):
        assert str(os.getpid()) in (tmp_path / NAME).read_text()
    assert not (tmp_path / NAME).exists()


def test_processes_that_look_at_once_do_not_refuse_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The ranks of a resumed run do, where a killed one has left its file."""
    assert lock.fcntl is not None
    (tmp_path / NAME).touch()
    whole = lock.fcntl.flock
    calls = []

    def look_meanwhile(file: FileIO, how: int) -> None:
        whole(file, how)
        calls.append(how)
        if len(calls) == 1:
            check_unlocked(tmp_path)

    monkeypatch.setattr(lock.fcntl, "flock", look_meanwhile)
    check_unlocked(tmp_path)
    assert len(calls) == 2


def test_a_run_is_not_resumed_while_it_trains(tmp_path: Path):
    running = small_run(tmp_path)
    until_saved(running, step=4)
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(FolderInUse, match=f"process {os.getpid()} on {re.escape(platform.node())} is writing to this"):
        next(small_run(tmp_path, resume=tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    running.close()
    until_saved(small_run(tmp_path, resume=tmp_path), step=8)


def test_checkpoints_that_appear_before_the_lock_is_held_are_noticed(tmp_path: Path):
    late = RunFolder.start(tmp_path)
    until_saved(small_run(tmp_path), step=4)
    with pytest.raises(RearviewError, match="another process has written checkpoints here in the meantime"), late:
        pass
    check_unlocked(tmp_path)


def test_a_lock_that_its_holder_removed_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opened before the holder removes the file, locked after: that lock is of a file that no other process sees."""
    assert lock.fcntl is not None
    first = FolderLock(tmp_path).__enter__()
    whole = lock.fcntl.flock
    calls = []

    def release_first(file: FileIO, how: int) -> None:
        calls.append(how)
        if len(calls) == 1:
            first.__exit__()
        whole(file, how)

    monkeypatch.setattr(lock.fcntl, "flock", release_first)
    with FolderLock(tmp_path):
        assert len(calls) == 2
        with pytest.raises(FolderInUse):
            check_unlocked(tmp_path)


def test_a_file_system_without_locks_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def unsupported(file: object, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(lock.fcntl, "flock", unsupported)
    warning = r"cannot be locked \(Function not implemented\); make sure that only one process writes to it"
    with pytest.warns(UserWarning, match=warning), FolderLock(tmp_path):
        pass


def test_a_disk_that_refuses_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    for attempt in (lambda: check_unlocked(tmp_path), lambda: FolderLock(tmp_path).__enter__()):
        with pytest.raises(BadArgument) as error:
            attempt()
        assert str(error.value) == (
            f"out: expected a folder that can be written to, got Read-only file system ({tmp_path})."
        )


def test_a_lock_that_cannot_be_removed_is_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "Input/output error")

    held = FolderLock(tmp_path).__enter__()
    monkeypatch.setattr(Path, "unlink", refuse)
    held.__exit__()
    monkeypatch.undo()
    # The file is left, and locks nothing.
    assert (tmp_path / NAME).exists()
    check_unlocked(tmp_path)
