"""Small training runs in processes that may be killed. They are forked from one that has imported everything.

A child says what became of it by its exit code, and by the last line of its log, which lies outside of the run.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from rearview.errors import RearviewError
from rearview.training import Run, RunConfig, Saved, checkpoints, newest, read_checkpoint

# A child that takes longer hangs.
PATIENCE = 300.0
REFUSED, TRACEBACK = 2, 3
STEPS = 16
TEXT = "".join(f"{n} green bottles standing on the wall, and if one should fall,\n" * (1 + n % 3) for n in range(60))
PRELOADED = ["bench.soak.children", "bench.soak.file_faults", "torch._dynamo", "safetensors.torch"]


def config_of(text: Path, **changes: object) -> RunConfig:
    """Every part of a run matters: dropout, accumulation, validation, samples."""
    settings = {
        **{"text": str(text), "context": 16, "layers": 1, "heads": 2, "width": 16, "dropout": 0.1, "batch": 2},
        **{"accumulate": 2, "lr": 1e-2, "warmup": 3, "steps": STEPS, "threads": 1, "tokenizer": "chars"},
        **{"log_every": 3, "eval_every": 4, "eval_tokens": 64, "sample_every": 8, "sample_tokens": 8},
        **{"save_every": 2},
    }
    return RunConfig.from_json({**settings, **changes})


def carried_on(out: Path, text: Path, log: Path, steps: int) -> None:
    """Start the run, or resume it if it has a checkpoint, and train to its end. Every saved step is logged."""
    run = Run.resume(out) if checkpoints(out) else Run.start(config_of(text, steps=steps), out)
    with log.open("a") as file:
        for event in run.train():
            if isinstance(event, Saved):
                file.write(f"saved {event.step}\n")
                file.flush()


def read_all(out: Path) -> None:
    """Read every checkpoint of a run, as a killed process left it."""
    for path in checkpoints(out):
        read_checkpoint(path)


def digests(out: Path) -> dict[str, str]:
    """Checksums of what a finished run has computed: the weights, the state of training, all losses and samples."""
    last = newest(out)
    files = {each: last / each for each in ("model.safetensors", "optimizer.safetensors", "training.json")}
    files["metrics.jsonl"] = out / "metrics.jsonl"
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def saved_steps(log: Path) -> list[int]:
    """The steps that a child has announced as saved."""
    lines = log.read_text().splitlines() if log.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("saved ")]


class Children:
    """Starts processes; `workspace` is a folder of their own, and `text` what they train on, so many `steps`."""

    def __init__(self, workspace: Path, steps: int = STEPS):
        self.workspace, self.steps = workspace, steps
        self.text = workspace / "text.txt"
        self.text.write_text(TEXT)
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        self._number = 0

    def new_folder(self) -> Path:
        self._number += 1
        return self.workspace / f"run-{self._number}"

    def log_of(self, out: Path) -> Path:
        return self.workspace / f"{out.name}.log"

    def start(self, function: Callable[..., None], *arguments: object, log: Path) -> BaseProcess:
        child = self._context.Process(target=_run, args=(function, arguments, str(log)))
        child.start()
        return child

    def train(self, out: Path) -> BaseProcess:
        return self.start(carried_on, out, self.text, self.log_of(out), self.steps, log=self.log_of(out))

    def end(self, child: BaseProcess) -> int:
        """Wait for a child; its exit code, negative for a signal."""
        child.join(PATIENCE)
        if child.exitcode is None:
            child.kill()
            child.join()
            raise AssertionError(f"a process did not end within {PATIENCE:.0f} s")
        return child.exitcode

    def finished(self, out: Path) -> dict[str, str]:
        """Carry the run on to its end, without disturbing it; the checksums of the result."""
        log = self.log_of(out)
        code = self.end(self.train(out))
        if code:
            raise AssertionError(f"the run could not be carried on (exit code {code}): {last_line(log)}")
        return digests(out)


def last_line(log: Path) -> str:
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else ""


@contextmanager
def children(steps: int = STEPS) -> Iterator[Children]:
    """Children with a temporary workspace."""
    with TemporaryDirectory(prefix="rearview-soak-") as workspace:
        yield Children(Path(workspace), steps)


def _run(function: Callable[..., None], arguments: tuple[object, ...], log: str) -> None:
    torch.set_num_threads(1)
    # What the child prints belongs to its log.
    with open(log, "a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
        try:
            function(*arguments)
        except RearviewError as error:
            file.write(f"refused: {str(error).splitlines()[0]}\n")
            code = REFUSED
        except BaseException:
            file.write(traceback.format_exc())
            code = TRACEBACK
        else:
            code = 0
    sys.stdout = sys.stderr = None
    os._exit(code)
