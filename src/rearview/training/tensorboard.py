"""Event files for TensorBoard, which shows the curves of a run in a browser while it trains."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING

from rearview.errors import MissingExtra
from rearview.training.events import Event, Sample, TrainingStep, Validation

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def to_tensorboard(events: Iterable[Event], folder: str | os.PathLike[str]) -> Generator[Event, None, None]:
    """Yield the events, and write each to event files in `folder`.

    >>> import tempfile
    >>> from rearview.training import TrainingStep
    >>> steps = [TrainingStep(step=1, loss=2.5, lr=0.1, grad_norm=1.0, tokens_per_second=9.0)]
    >>> len(list(to_tensorboard(steps, tempfile.mkdtemp())))
    1
    """
    writer = _writer(folder)
    try:
        for event in events:
            match event:
                case TrainingStep():
                    writer.add_scalar("loss/training", event.loss, event.step)
                    writer.add_scalar("learning rate", event.lr, event.step)
                    writer.add_scalar("gradient norm", event.grad_norm, event.step)
                    writer.add_scalar("tokens per second", event.tokens_per_second, event.step)
                case Validation():
                    writer.add_scalar("loss/validation", event.loss, event.step)
                    writer.add_scalar("bits per character", event.bits_per_character, event.step)
                    writer.flush()
                case Sample():
                    writer.add_text("sample", _verbatim(event.text), event.step)
            yield event
    finally:
        writer.close()


def _writer(folder: str | os.PathLike[str]) -> SummaryWriter:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtra("tensorboard", extra="tensorboard", needed_for="Writing for TensorBoard") from error
    return SummaryWriter(str(folder))


def _verbatim(text: str) -> str:
    """Markdown that shows every line unchanged."""
    return "".join(f"    {line}\n" for line in text.splitlines())
