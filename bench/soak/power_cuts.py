"""Power cuts: the blocks of a disk as they are at some moment of a training run, mounted again elsewhere.

The run writes to an ext4 file system in an image file. It is stopped for a moment, and the image is copied until two
copies are equal. What only the memory of the system held is not in the copy, as after a power cut; ext4 replays its
journal, as after a power cut. Needs root and loop devices. A disk that loses writes which it has acknowledged, or
writes in another order than it was told to, is not simulated.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench.soak.children import Children, saved_steps
from bench.soak.experiment import Experiment, Session, Tally
from bench.soak.training_faults import check_readable, compare, whole_run
from rearview.training import checkpoints
from rearview.training.checkpoint.folders import step_of

MEGABYTES = 12


def missing() -> str:
    if os.geteuid() != 0 if hasattr(os, "geteuid") else True:
        return "mounting a file system needs root"
    if absent := [name for name in ("mkfs.ext4", "mount", "losetup") if shutil.which(name) is None]:
        return f"{absent[0]} is not installed"
    if subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
        return "there are no loop devices"
    return ""


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    folder.mkdir(exist_ok=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True, capture_output=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)


def new_image(path: Path) -> Path:
    path.write_bytes(b"")
    os.truncate(path, MEGABYTES << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", str(path)], check=True, capture_output=True)
    return path


def snapshot(image: Path) -> bytes:
    """The blocks of a disk that nothing was written to while they were copied."""
    before = image.read_bytes()
    while (after := image.read_bytes()) != before:
        before = after
    return after


def cut_power(tally: Tally, session: Session) -> None:
    draw = session.draw
    with whole_run() as (found, whole, seconds):
        while session.goes_on(tally):
            out_name, cuts = found.new_folder().name, []
            image = new_image(found.workspace / f"{out_name}.img")
            with mounted(image, found.workspace / "disk") as disk:
                out = disk / out_name
                child = found.train(out)
                assert child.pid is not None
                for _ in range(draw.randint(1, 5)):
                    # The first moments of a run are the most fragile.
                    time.sleep(seconds / 2 * draw.random() ** 2)
                    if child.exitcode is not None:
                        break
                    # A run that has just ended is as good a moment; there is nothing to stop then.
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGSTOP)
                    cuts.append((saved_steps(found.log_of(out)), snapshot(image)))
                    with suppress(ProcessLookupError):
                        os.kill(child.pid, signal.SIGCONT)
                child.kill()
                found.end(child)
            image.unlink()
            for number, (saved, blocks) in enumerate(cuts):
                _examine(tally, found, whole, f"{out_name}-{number}", saved, blocks)


def _examine(tally: Tally, found: Children, whole: dict[str, str], name: str, saved: list[int], blocks: bytes) -> None:
    image = found.workspace / f"{name}.img"
    image.write_bytes(blocks)
    what = f"power cut {name}, after {len(saved)} checkpoints"
    tally.tried["power cuts"] += 1
    with mounted(image, found.workspace / "again") as disk:
        out = next((path for path in disk.iterdir() if path.name.startswith("run")), disk / "run")
        newest = max(map(step_of, checkpoints(out)), default=-1)
        tally.found["before the first checkpoint"] += not saved
        if saved and newest < saved[-1]:
            tally.fail(f"{what}: step {saved[-1]} was said to be saved, and the newest checkpoint is {newest}")
        if out.exists():
            check_readable(tally, what, found, out)
        compare(tally, what, whole, found, out)
    image.unlink()


EXPERIMENT = Experiment(
    "power cuts",
    "A checkpoint that was said to be saved is there after a power cut, and the run goes on with the same bits.",
    cut_power,
    quick=1,
    missing=missing,
)
