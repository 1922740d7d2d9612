"""Processes that are killed at any point and resumed give the same numbers, bit by bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rearview.training import checkpoints, newest, read_metrics

PROGRAM = Path(__file__).with_name("small_run.py")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked here")

# The run saves at 0, 4, 8, 12 and 16. A checkpoint is six files, each written, synced and in the end renamed.
POINTS = [
    {"step": 1},
    {"step": 6},
    {"step": 9},
    *({"step": 5, "call": "write_bytes", "count": count} for count in (1, 2, 4)),
    *({"step": 5, "call": "fsync", "count": count} for count in (1, 4, 6)),
    *({"step": 5, "call": "replace", "count": count} for count in (1, 3, 4)),
]
AGAIN = [
    {"step": 3},
    {"step": 6, "call": "fsync", "count": 3},
    {"step": 11},
    {"step": 15, "call": "replace", "count": 2},
]


def named(point: dict) -> str:
    return f"{point.get('call', 'event')}-{point.get('count', point['step'])}"


def run(scenarios: list[dict]) -> list[int]:
    done = subprocess.run(
        [sys.executable, str(PROGRAM), json.dumps(scenarios)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return json.loads(done.stdout)


def test_a_killed_and_resumed_run_equals_one_that_was_not_killed(tmp_path: Path):
    # One run that is not killed; for each point one that is killed there, checked as it was left, and resumed.
    root = tmp_path
    scenarios: list[dict] = [{"out": str(root / "whole")}]
    codes = [0]
    for point in POINTS:
        out = str(root / named(point))
        scenarios += [{"out": out, "kill": point}, {"check": out}, {"out": out, "resume": out}]
        codes += [-signal.SIGKILL, 0, 0]
    # And one that is killed several times.
    again = str(root / "again")
    scenarios += [{"out": again, "resume": again if n else None, "kill": kill} for n, kill in enumerate(AGAIN)]
    scenarios += [{"check": again}, {"out": again, "resume": again}]
    codes += [-signal.SIGKILL] * len(AGAIN) + [0, 0]
    assert run(scenarios) == codes
    check_the_run_is_worth_killing(root / "whole")
    for name in [*map(named, POINTS), "again"]:
        check_the_same(root / name, root / "whole")


def check_the_run_is_worth_killing(out: Path) -> None:
    records = read_metrics(out)
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 17))
    assert [record["step"] for record in records if "validation" in record] == [4, 8, 12, 16]
    assert [record["step"] for record in records if "sample" in record] == [8, 16]
    losses = [record["loss"] for record in records if "loss" in record]
    assert losses[-1] < losses[0] - 0.3
    assert [path.name for path in checkpoints(out)] == ["step-000012", "step-000016"]


def check_the_same(out: Path, whole: Path) -> None:
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes(), out.name
    for file in ("model.safetensors", "optimizer.safetensors", "training.json"):
        assert (newest(out) / file).read_bytes() == (newest(whole) / file).read_bytes(), out.name
    # No unfinished checkpoint is left.
    assert sorted(path.name for path in out.iterdir()) == ["metrics.jsonl", "step-000012", "step-000016"]
