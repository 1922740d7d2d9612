"""metrics.jsonl: one line per step, validation and sample.

It has no times, so a run that was killed and resumed has the same lines, bit by bit, as one that was not.

>>> import tempfile
>>> from pathlib import Path
>>> from rearview.training.events import TrainingStep, Validation
>>> out = Path(tempfile.mkdtemp())
>>> with Metrics(out) as metrics:
...     metrics.write(TrainingStep(step=1, loss=2.5, lr=0.1, grad_norm=1.0, tokens_per_second=9.0))
...     metrics.write(Validation(step=1, loss=2.25, bits_per_character=3.0))
>>> read_metrics(out)
[{'step': 1, 'loss': 2.5, 'lr': 0.1, 'grad_norm': 1.0}, {'step': 1, 'validation': 2.25, 'bits_per_character': 3.0}]
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Required, TypedDict, cast

from rearview.codec import brief, parse_json, read_bytes
from rearview.errors import BadFile, RearviewError
from rearview.files import write_whole
from rearview.training.events import Event, Sample, TrainingStep, Validation

NAME = "metrics.jsonl"
# Some ten million steps.
LARGEST_FILE = 2**30


class MetricsRecord(TypedDict, total=False):
    """A line: the numbers of a step, of a validation, or a sample."""

    step: Required[int]
    loss: float
    lr: float
    grad_norm: float
    validation: float
    bits_per_character: float
    sample: str


class Metrics:
    """The metrics of a run, to append to. Lines of steps after `step` are removed first."""

    def __init__(self, out: Path, step: int = 0):
        self.path = out / NAME
        kept = [json.dumps(record) for record in read_metrics(out) if record["step"] <= step]
        write_whole(self.path, "".join(line + "\n" for line in kept).encode())
        self._file = self.path.open("a", encoding="utf-8")

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *exception: object) -> None:
        # Lines that a full disk refuses here follow the last checkpoint: a resumed run writes them again.
        with suppress(OSError):
            self._file.close()

    def write(self, event: Event) -> None:
        """Append an event, if it is one that is kept."""
        if (record := record_of(event)) is None:
            return
        try:
            self._file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise RearviewError(
                f"{self.path}: step {event.step} could not be written: {error.strerror}. The last checkpoint is intact."
            ) from error

    def sync(self) -> None:
        """Write the lines to the disk, before a checkpoint declares their steps done."""
        self._file.flush()
        os.fsync(self._file.fileno())


def record_of(event: Event) -> MetricsRecord | None:
    """The line of an event; None for an event that is not kept."""
    match event:
        case TrainingStep():
            return {"step": event.step, "loss": event.loss, "lr": event.lr, "grad_norm": event.grad_norm}
        case Validation():
            return {"step": event.step, "validation": event.loss, "bits_per_character": event.bits_per_character}
        case Sample():
            return {"step": event.step, "sample": event.text}
    return None


def read_metrics(out: str | os.PathLike[str]) -> list[MetricsRecord]:
    """The metrics of a run in order; an incomplete last line, which a killed run may leave, is left out."""
    path = Path(out, NAME)
    if not path.exists():
        return []
    lines = read_bytes(path, most=LARGEST_FILE).split(b"\n")
    records: list[MetricsRecord] = []
    # What follows the last line end is not a complete line.
    for number, line in enumerate(lines[:-1], start=1):
        try:
            records.append(_checked(parse_json(line, path)))
        except (BadFile, ValueError) as error:
            why = error.why if isinstance(error, BadFile) else error
            raise BadFile(path, f"line {number} is not a record of a run: {why}.") from error
    return records


def _checked(record: object) -> MetricsRecord:
    """The record, if its fields have the types that are written. A diverged loss is NaN, as Python writes it."""
    if not isinstance(record, dict) or not isinstance(step := record.get("step"), int) or isinstance(step, bool):
        raise ValueError("expected an object with a step")
    for name, value in record.items():
        kind = str if name == "sample" else (int, float)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"{brief(name)} is {brief(value)}")
    return cast(MetricsRecord, record)
