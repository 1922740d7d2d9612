"""Training runs that are killed at any moment, harmed at every file operation, started twice, or run out of disk."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.soak.children import REFUSED, STEPS, Children, carried_on, children, digests, last_line, read_all
from bench.soak.experiment import Experiment, Session, Tally
from bench.soak.file_faults import KILL, KINDS, FileFaults
from rearview.training import checkpoints

# Checkpoints at 0, 2, 4 and 6, of which the first are removed.
FEW_STEPS = 6
PROMISE = "A run that is carried on ends with the bits of a run that was not disturbed."


@contextmanager
def whole_run(steps: int = STEPS) -> Iterator[tuple[Children, dict[str, str], float]]:
    """Children, the checksums of a run that nobody disturbs, and its duration in seconds."""
    with children(steps) as found:
        # Once for the imports of the process that the others are forked from.
        found.finished(found.new_folder())
        start = time.monotonic()
        yield found, found.finished(found.new_folder()), time.monotonic() - start


def compare(tally: Tally, what: str, whole: dict[str, str], found: Children, out: Path) -> None:
    """Carry a run on to its end, and compare it."""
    tally.tried["runs carried on and compared, bit by bit"] += 1
    try:
        others = found.finished(out)
    except AssertionError as error:
        tally.fail(f"{what}: {error}")
        return
    if differing := [name for name in whole if whole[name] != others[name]]:
        tally.fail(f"{what}: other bits in {', '.join(differing)}")
    # Nothing unfinished is left behind.
    if left := [path.name for path in out.iterdir() if path.name.startswith(".")]:
        tally.fail(f"{what}: {', '.join(left)} is left in the folder")


def check_readable(tally: Tally, what: str, found: Children, out: Path) -> None:
    """Every checkpoint that has a name must be whole."""
    log = found.log_of(out)
    tally.tried["checkpoints read after it"] += len(checkpoints(out))
    if found.end(found.start(read_all, out, log=log)):
        tally.fail(f"{what}: a checkpoint is damaged: {last_line(log)}")


def kill_at_random_moments(tally: Tally, session: Session) -> None:
    draw = session.draw
    with whole_run() as (found, whole, seconds):
        while session.goes_on(tally):
            out = found.new_folder()
            what = f"run {out.name}"
            for _ in range(draw.randint(1, 4)):
                child = found.train(out)
                time.sleep(draw.uniform(0, seconds))
                child.kill()
                code = found.end(child)
                tally.tried["kills with -9"] += code == -signal.SIGKILL
                tally.found["had ended before"] += code == 0
                if code not in (0, -signal.SIGKILL):
                    tally.fail(f"{what}: exit code {code}: {last_line(found.log_of(out))}")
                check_readable(tally, what, found, out)
            compare(tally, what, whole, found, out)


def _harmed(out: Path, text: Path, log: Path, kind: str, at: int, lasts: bool, count: Path | None = None) -> None:
    faults = FileFaults(out, kind, at, lasts=lasts)
    faults.arm()
    carried_on(out, text, log, FEW_STEPS)
    if count is not None:
        count.write_text(str(faults.count))


def operations_of_a_run(found: Children) -> int:
    """The number of file operations of a run that is not harmed."""
    out, count = found.new_folder(), found.workspace / "count"
    log = found.log_of(out)
    assert found.end(found.start(_harmed, out, found.text, log, KILL, 0, False, count, log=log)) == 0, last_line(log)
    return int(count.read_text())


def harm_every_operation(tally: Tally, session: Session) -> None:
    with whole_run(FEW_STEPS) as (found, whole, _):
        total = operations_of_a_run(found)
        tally.found["file operations of one run"] = total
        # In a random order, so that a short session meets all parts of a run.
        points = [(at, kind, lasts) for at in range(1, total + 1) for kind in KINDS for lasts in (False, True)]
        points = [point for point in points if not (point[1] == KILL and point[2])]
        session.draw.shuffle(points)
        for at, kind, lasts in points:
            if not session.goes_on(tally):
                return
            out = found.new_folder()
            log = found.log_of(out)
            what = f"{kind}{' for good' * lasts} at operation {at} of {total}"
            code = found.end(found.start(_harmed, out, found.text, log, kind, at, lasts, log=log))
            tally.tried["faults at a file operation"] += 1
            tally.tried[f"of these, {kind}"] += 1
            if code == REFUSED and kind != KILL:
                tally.found["ended with an error that says why"] += 1
            elif code == 0 and kind != KILL:
                tally.found["trained on"] += 1
            elif (code, kind) != (-signal.SIGKILL, KILL):
                tally.fail(f"{what}: exit code {code}: {last_line(log)}")
            if out.exists():
                check_readable(tally, what, found, out)
            compare(tally, what, whole, found, out)


def start_twice(tally: Tally, session: Session) -> None:
    draw = session.draw
    with whole_run() as (found, whole, seconds):
        while session.goes_on(tally):
            out = found.new_folder()
            what = f"two processes on {out.name}"
            if draw.random() < 0.5:
                # Half of the races are about a run that has begun.
                child = found.train(out)
                time.sleep(draw.uniform(0, seconds))
                child.kill()
                found.end(child)
            logs = [found.workspace / f"{out.name}-{n}.log" for n in range(2)]
            racing = []
            for log in logs:
                racing.append(found.start(carried_on, out, found.text, log, found.steps, log=log))
                time.sleep(draw.choice([0.0, draw.uniform(0, seconds / 2)]))
            codes = [found.end(child) for child in racing]
            tally.tried["pairs of processes on one folder"] += 1
            tally.found["one refused, which names the other"] += codes.count(REFUSED)
            if any(code not in (0, REFUSED) for code in codes) or 0 not in codes:
                tally.fail(f"{what}: exit codes {codes}: {'; '.join(map(last_line, logs))}")
            elif digests(out) != whole:
                tally.fail(f"{what}: other bits")


def _with_small_files(out: Path, text: Path, log: Path, steps: int, most: int) -> None:
    # Files of the run may not grow beyond this; the log is opened already and is short.
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    carried_on(out, text, log, steps)


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


def fill_the_disk(tally: Tally, session: Session) -> None:
    """On a small file system in memory where this may be mounted; otherwise by a limit on the size of files."""
    with whole_run() as (found, whole, _):
        disk = found.workspace / "disk"
        disk.mkdir()
        while session.goes_on(tally):
            if _is_root() and _mounted(disk, kilobytes := session.draw.randrange(16, 700)):
                try:
                    _on_full_disk(tally, session.draw, f"a disk of {kilobytes} KiB", found, whole, disk)
                finally:
                    subprocess.run(["umount", str(disk)], check=True, capture_output=True)
            else:
                _with_limit(tally, session.draw, found, whole)


def _mounted(disk: Path, kilobytes: int) -> bool:
    command = ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(disk)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _on_full_disk(
    tally: Tally, draw: random.Random, what: str, found: Children, whole: dict[str, str], disk: Path
) -> None:
    tally.tried["full disks"] += 1
    out = disk / f"run-{tally.trials}"
    code = found.end(found.train(out))
    _judge_refusal(tally, what, code, last_line(found.log_of(out)))
    if out.exists():
        check_readable(tally, what, found, out)
    # Somebody frees space.
    subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True, capture_output=True)
    compare(tally, what, whole, found, out)


def _with_limit(tally: Tally, draw: random.Random, found: Children, whole: dict[str, str]) -> None:
    tally.tried["files that may not grow"] += 1
    most, out = draw.randrange(200, 60_000), found.new_folder()
    log = found.log_of(out)
    what = f"files of at most {most} bytes"
    code = found.end(found.start(_with_small_files, out, found.text, log, found.steps, most, log=log))
    _judge_refusal(tally, what, code, last_line(log))
    if out.exists():
        check_readable(tally, what, found, out)
    compare(tally, what, whole, found, out)


def _judge_refusal(tally: Tally, what: str, code: int, said: str) -> None:
    if code == REFUSED:
        tally.found["ended with an error that says why"] += 1
    elif code == 0:
        tally.found["had room enough"] += 1
    else:
        tally.fail(f"{what}: exit code {code}: {said}")


KILLS = Experiment("kills", PROMISE, kill_at_random_moments, share=1.5, quick=1)
FILE_FAULTS = Experiment("file operations", PROMISE, harm_every_operation, share=1.5, quick=4)
DOUBLE_STARTS = Experiment("double starts", "Of two processes on one folder one trains.", start_twice, quick=1)
FULL_DISKS = Experiment("full disks", PROMISE, fill_the_disk, quick=1)
