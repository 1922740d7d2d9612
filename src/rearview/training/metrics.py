"""metrics.jsonl: a line for each step, validation and sample. No times: a run that was killed and resumed has the
same lines, to the last bit, as one that was not.

>>> import tempfile
>>> from pathlib import Path
>>> from rearview.training.events import Step, Validation
>>> out = Path(tempfile.mkdtemp())
>>> with Metrics(out) as metrics:
...     metrics.write(Step(step=1, loss=2.5, lr=0.1, grad_norm=1.0, tokens_per_second=9.0))
...     metrics.write(Validation(step=1, loss=2.25, bits_per_character=3.0))
>>> read_metrics(out)
[{'step': 1, 'loss': 2.5, 'lr': 0.1, 'grad_norm': 1.0}, {'step': 1, 'validation': 2.25, 'bits_per_character': 3.0}]
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from rearview.errors import BadFile
from rearview.masks.write import write_whole
from rearview.training.events import Event, Sample, Step, Validation

NAME = "metrics.jsonl"


class Metrics:
    """The file of a run, from which what came after `step` is cut off first. To be used in a `with` statement."""

    def __init__(self, out: Path, step: int = 0):
        self.path = out / NAME
        kept = [json.dumps(record) for record in read_metrics(out) if record["step"] <= step]
        write_whole(self.path, "".join(line + "\n" for line in kept).encode())
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def write(self, event: Event) -> None:
        if (record := record_of(event)) is not None:
            self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        """Where a reader sees it."""
        self._file.flush()

    def sync(self) -> None:
        """To the disk: before a checkpoint says that these steps are done."""
        self._file.flush()
        os.fsync(self._file.fileno())


def record_of(event: Event) -> dict[str, Any] | None:
    """What is kept of an event, if anything."""
    match event:
        case Step():
            return {"step": event.step, "loss": event.loss, "lr": event.lr, "grad_norm": event.grad_norm}
        case Validation():
            return {"step": event.step, "validation": event.loss, "bits_per_character": event.bits_per_character}
        case Sample():
            return {"step": event.step, "sample": event.text}
    return None


def read_metrics(out: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of a run's metrics, in order; a last line that was cut off by a kill is left out."""
    path = Path(out, NAME)
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(path, f"cannot be read: {error}.") from error
    records = []
    # What stands behind the last line end is not a whole line.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
            int(record["step"])
        except (ValueError, KeyError, TypeError) as error:
            raise BadFile(path, f"line {number} is not a record of a run: {error}.") from error
        records.append(record)
    return records
