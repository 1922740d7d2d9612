"""compare(): the same model, text and batches, with the mask and without it; then the same exam for both.

>>> from rearview.text import CharTokenizer
>>> from rearview.training import TextData
>>> text = "to be, or not to be, that is the question. " * 20
>>> data = TextData.of([text], CharTokenizer.of([text]))
>>> from rearview.comparison import Settings, compare
>>> size = {"context": 8, "layers": 1, "heads": 2, "width": 16, "new_tokens": 8}
>>> comparison = compare(data, Settings(steps=30, batch=4, warmup=3, eval_every=15, **size))
>>> comparison.self_check < 1e-3, len(comparison.without_mask.training)
(True, 30)

`comparing` is the same, as an iterator of events.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Literal, TypeVar

import torch

from rearview.comparison.continuations import generate_continuations, prompts_of
from rearview.comparison.events import (
    ComparisonEvent,
    ComparisonFinished,
    ComparisonStopped,
    ExamProgress,
    SideEvent,
    SideName,
)
from rearview.comparison.exam import exam_batch, from_prefixes, from_whole_windows
from rearview.comparison.measurements import Examined, comparison_of
from rearview.comparison.result import Comparison, Conditions
from rearview.comparison.settings import Settings
from rearview.masks import Mask, causal, full
from rearview.models import GPT
from rearview.training.batches import Batch
from rearview.training.checkpoint import checkpoints
from rearview.training.data import TextData
from rearview.training.events import Event, Started, Stopped
from rearview.training.loop import train
from rearview.training.metrics import MetricsRecord, read_metrics, record_of

WITH: SideName = "with-mask"
WITHOUT: SideName = "without-mask"
MASKS: dict[SideName, Mask] = {WITH: causal(), WITHOUT: full()}

Result = TypeVar("Result")


def compare(
    data: TextData,
    settings: Settings | None = None,
    *,
    name: str = "",
    command: str = "",
    out: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Train a model with the mask and one without it, examine both, and return the comparison.

    Args:
        data: a tokenized text; its held-out part is for the exam.
        settings: the size of the model, its training and the exam.
        name, command: the name of the text, and the command that repeats the comparison; for the report.
        out: a folder for the two runs; if it has runs that were interrupted, they are resumed. By default nothing is
            written.
    """
    for event in comparing(data, settings, name=name, command=command, out=out):
        if isinstance(event, ComparisonFinished):
            return event.comparison
    raise AssertionError("without stop= a comparison finishes")


def comparing(
    data: TextData,
    settings: Settings | None = None,
    *,
    name: str = "",
    command: str = "",
    out: str | os.PathLike[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Generator[ComparisonEvent, None, None]:
    """The events of `compare`. The last is `ComparisonFinished`, or `ComparisonStopped` after `stop` returned True."""
    settings = settings or Settings()
    data.check_context(settings.context)
    models: dict[SideName, GPT] = {side: settings.new_model(data.tokenizer, mask) for side, mask in MASKS.items()}
    _check_equal(models)
    folders: dict[SideName, Path | None] = {side: None if out is None else Path(out, side) for side in MASKS}
    metrics: dict[SideName, list[MetricsRecord]] = {side: [] for side in MASKS}
    precision = "float32"
    for each in _training(models, data, settings, folders, stop):
        yield each
        if isinstance(each.event, Stopped):
            yield ComparisonStopped()
            return
        if isinstance(each.event, Started):
            precision = each.event.precision
        if (record := record_of(each.event)) is not None:
            metrics[each.side].append(record)
    for side, folder in folders.items():
        if folder is not None:
            # With the steps before an interruption.
            metrics[side] = read_metrics(folder)

    batch = exam_batch(data.validation, context=settings.context, windows=settings.exam_windows)
    prompts, continuations = prompts_of(
        data.validation,
        data.tokenizer,
        count=settings.prompts,
        length=settings.prompt_tokens,
        after=settings.new_tokens,
    )
    examined: dict[SideName, Examined] = {}
    for side, model in models.items():
        result = yield from _examined(side, model, metrics[side], batch, prompts, settings, stop)
        if result is None:
            yield ComparisonStopped()
            return
        examined[side] = result
    conditions = Conditions(
        # Of the class itself: a subclass also has the settings of a text.
        settings=Settings.from_json(settings.to_json()),
        text=name or "a text",
        command=command or f"compare(data, {settings!r})",
        fingerprint=data.fingerprint,
        characters=data.characters,
        documents=data.documents,
        tokenizer=data.tokenizer.kind,
        vocab_size=data.tokenizer.vocab_size,
        parameters=models[WITH].num_parameters(),
        exam_windows=len(batch.tokens),
        precision=precision,
        threads=torch.get_num_threads(),
        versions={"rearview": _version(), "torch": torch.__version__, "python": platform.python_version()},
    )
    yield ComparisonFinished(
        comparison_of(examined[WITH], examined[WITHOUT], data, batch, prompts, continuations, conditions=conditions)
    )


def _training(
    models: dict[SideName, GPT],
    data: TextData,
    settings: Settings,
    folders: dict[SideName, Path | None],
    stop: Callable[[], bool],
) -> Iterator[SideEvent]:
    """Both trainings in turns, a few steps each. Each gives the numbers that it would give alone."""
    running: dict[SideName, Iterator[Event]] = {}
    for side, model in models.items():
        folder = folders[side]
        interrupted = folder is not None and checkpoints(folder)
        out, resume = (None, folder) if interrupted else (folder, None)
        running[side] = train(model, data, settings, out=out, resume=resume, stop=stop)
    at = dict.fromkeys(running, 0)
    while running:
        # The model with fewer steps continues.
        side = min(running, key=lambda side: at[side])
        event = next(running[side], None)
        if event is None:
            del running[side]
            continue
        if isinstance(event, Stopped):
            # The other stops at its next step too, and is saved.
            for other in running.keys() - {side}:
                yield from (SideEvent(other, last) for last in running[other] if not isinstance(last, Stopped))
        at[side] = event.step
        yield SideEvent(side, event)
        if isinstance(event, Stopped):
            return


def _examined(
    side: SideName,
    model: GPT,
    metrics: list[MetricsRecord],
    batch: Batch,
    prompts: list[list[int]],
    settings: Settings,
    stop: Callable[[], bool],
) -> Generator[ExamProgress, None, Examined | None]:
    """The exam of one model; None if it was stopped."""

    def progress(
        task: Literal["exam", "text"], steps: Generator[tuple[int, int], None, Result]
    ) -> Generator[ExamProgress, None, Result | None]:
        while not stop():
            try:
                done, total = next(steps)
            except StopIteration as end:
                return end.value
            yield ExamProgress(side, task, done, total)
        return None

    model.eval()
    exam = yield from progress("exam", from_prefixes(model, batch))
    if exam is None:
        return None
    new_tokens, temperature = settings.new_tokens, settings.temperature
    generating = generate_continuations(
        model, prompts, new_tokens=new_tokens, temperature=temperature, seed=settings.seed
    )
    texts = yield from progress("text", generating)
    return None if texts is None else Examined(model, metrics, exam, from_whole_windows(model, batch), texts)


def _check_equal(models: dict[SideName, GPT]) -> None:
    first, second = (model.state_dict() for model in models.values())
    assert all(torch.equal(first[name], second[name]) for name in first), "one seed gives the same first weights"


def _version() -> str:
    try:
        return metadata.version("rearview")
    except metadata.PackageNotFoundError:
        return "from its source"
