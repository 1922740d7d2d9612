"""Training in two processes, of which one is killed: the other ends soon, and the run goes on with the same bits.

The launcher is the real command, `rearview train --processes 2`. What is killed is one of its ranks, or the launcher.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.soak.children import PATIENCE, Children, children
from bench.soak.experiment import Experiment, Session, Tally
from rearview.training import checkpoints, newest
from rearview.training.checkpoint.shards import FOLDER, whole_state

RANKS = 2
STEPS = 8


def _command(found: Children, out: Path) -> list[str]:
    train = [sys.executable, "-m", "rearview", "train", "--processes", str(RANKS)]
    if checkpoints(out):
        return [*train, "--resume", str(out)]
    sizes = "--context 16 --layers 1 --heads 2 --width 16 --batch 2 --threads 1 --validation 0.2"
    every = f"--steps {STEPS} --warmup 2 --save-every 2 --eval-every 4 --sample-every 0"
    return [*train, "--text", str(found.text), "--out", str(out), *sizes.split(), *every.split()]


def start(found: Children, out: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(_command(found, out), stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment)


def ranks_of(launcher: int) -> list[int]:
    """The processes that a launcher has started."""
    try:
        listed = Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in listed.split()]


def carried_on(found: Children, out: Path) -> dict[str, str]:
    process = start(found, out)
    said, _ = process.communicate(timeout=PATIENCE)
    if process.returncode:
        raise AssertionError(f"exit code {process.returncode}: {' / '.join(said.strip().splitlines()[-6:])}")
    files = [newest(out) / "model.safetensors", out / "metrics.jsonl"]
    digests = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    # The tensors of a shard may lie in another order in its file.
    state = whole_state(newest(out) / FOLDER)
    for name in sorted(state):
        digests[name] = hashlib.sha256(repr(state[name].tolist()).encode()).hexdigest()
    return digests


def kill_ranks(tally: Tally, session: Session) -> None:
    draw = session.draw
    with children() as found:
        began = time.monotonic()
        whole = carried_on(found, found.new_folder())
        seconds = time.monotonic() - began
        while session.goes_on(tally):
            out = found.new_folder()
            process = start(found, out)
            target, killed = draw.choice(["rank 0", "rank 1", "the launcher"]), False
            time.sleep(draw.uniform(0, seconds))
            ranks = ranks_of(process.pid)
            if target == "the launcher":
                process.kill()
                killed = True
            elif len(ranks) == RANKS:
                os.kill(ranks[int(target[-1])], signal.SIGKILL)
                killed = True
            what = f"{target} of {out.name} killed"
            began = time.monotonic()
            try:
                said, _ = process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                tally.fail(f"{what}: the others did not end within {PATIENCE:.0f} s")
                continue
            tally.tried["runs in two processes"] += 1
            tally.tried["of these, killed in one of them"] += killed
            if "Traceback" in said:
                tally.fail(f"{what}: a traceback: {said.strip().splitlines()[-1]}")
            _await_end(ranks)
            tally.tried["runs carried on and compared, bit by bit"] += 1
            try:
                others = carried_on(found, out)
            except AssertionError as error:
                tally.fail(f"{what}: {error}")
                continue
            if differing := [name for name in whole if whole[name] != others.get(name)]:
                tally.fail(f"{what}: other bits in {', '.join(differing)}")


def _await_end(ranks: list[int]) -> None:
    """Ranks whose launcher was killed end by themselves, after their step."""
    deadline = time.monotonic() + PATIENCE
    while any(Path(f"/proc/{rank}").exists() for rank in ranks) and time.monotonic() < deadline:
        time.sleep(0.1)


def missing() -> str:
    return "" if Path("/proc/self/task").exists() else "the processes of a launcher are found in /proc"


EXPERIMENT = Experiment(
    "killed ranks",
    "When one of several processes is killed the others end, and the run goes on with the same bits.",
    kill_ranks,
    share=1.5,
    quick=1,
    missing=missing,
)
