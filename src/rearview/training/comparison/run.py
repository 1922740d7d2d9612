"""compare(): the same model, text and order of batches, with the mask and without it; then the same exam for both.

>>> from rearview.text import CharTokenizer
>>> from rearview.training import TextData
>>> text = "to be, or not to be, that is the question. " * 20
>>> data = TextData.of([text], CharTokenizer.of([text]))
>>> from rearview.training.comparison import Settings, compare, short_training
>>> training = short_training(steps=30, batch=4, warmup=3, eval_every=15)
>>> settings = Settings(context=8, layers=1, heads=2, width=16, training=training, new_tokens=8)
>>> found = compare(data, settings)
>>> found.self_check < 1e-3, len(found.without_mask.training)
(True, 30)

`comparing` is the same as an iterator of what happens.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Generator, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch

from rearview.masks import Mask, causal, full
from rearview.models import GPT
from rearview.training.batches import Batch
from rearview.training.checkpoint import checkpoints
from rearview.training.comparison.assemble import Examined, assembled
from rearview.training.comparison.exam import exam_batch, from_prefixes, from_whole_windows
from rearview.training.comparison.folder import WITH, WITHOUT
from rearview.training.comparison.happenings import Found, Halted, Happening, Progress, Trained
from rearview.training.comparison.result import Comparison, Conditions
from rearview.training.comparison.settings import Settings
from rearview.training.comparison.writing import prompts_of, written
from rearview.training.config import TrainConfig
from rearview.training.data import TextData
from rearview.training.events import Event, Started, Stopped
from rearview.training.loop import train
from rearview.training.metrics import read_metrics, record_of
from rearview.training.start import new_model

MASKS: dict[str, Mask] = {WITH: causal(), WITHOUT: full()}

Result = TypeVar("Result")


def compare(
    data: TextData,
    settings: Settings | None = None,
    *,
    name: str = "",
    command: str = "",
    out: str | os.PathLike[str] | None = None,
) -> Comparison:
    """Train with the mask and without it, examine both, and return what was found.

    Args:
        data: a text, in tokens; its held-out part is for the exam.
        settings: the size of the model, its training and the exam.
        name, command: of the text, and how to ask for the same again; for the report.
        out: a folder for the two runs; one that was begun before is gone on with. None: nothing is written.
    """
    for happening in comparing(data, settings, name=name, command=command, out=out):
        if isinstance(happening, Found):
            return happening.comparison
    raise AssertionError("nobody asked to stop")


def comparing(
    data: TextData,
    settings: Settings | None = None,
    *,
    name: str = "",
    command: str = "",
    out: str | os.PathLike[str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Happening]:
    """What happens, as it happens; `Found` is the last, or `Halted` when `stop` said True. See `compare`."""
    settings = settings or Settings()
    data.check_context(settings.context)
    models = {side: _model(data, settings, mask) for side, mask in MASKS.items()}
    _check_equal(models)
    folders = {side: None if out is None else Path(out, side) for side in MASKS}
    curves: dict[str, list[dict[str, Any]]] = {side: [] for side in MASKS}
    precision = "float32"
    for happening in _both(models, data, settings.training, folders, stop):
        yield happening
        if isinstance(happening.event, Stopped):
            yield Halted()
            return
        if isinstance(happening.event, Started):
            precision = happening.event.precision
        if (record := record_of(happening.event)) is not None:
            curves[happening.side].append(record)
    for side, folder in folders.items():
        if folder is not None:
            # Also what an earlier sitting wrote.
            curves[side] = read_metrics(folder)

    batch = exam_batch(data.validation, context=settings.context, windows=settings.exam_windows)
    prompts, continuations = prompts_of(
        data.validation,
        data.tokenizer,
        count=settings.prompts,
        length=settings.prompt_tokens,
        after=settings.new_tokens,
    )
    examined: dict[str, Examined] = {}
    for side, model in models.items():
        done = yield from _examined(side, model, curves[side], batch, prompts, settings, stop)
        if done is None:
            yield Halted()
            return
        examined[side] = done
    conditions = _conditions(data, settings, models[WITH], precision, len(batch.tokens), name=name, command=command)
    yield Found(
        assembled(examined[WITH], examined[WITHOUT], data, batch, prompts, continuations, conditions=conditions)
    )


def _both(
    models: dict[str, GPT],
    data: TextData,
    config: TrainConfig,
    folders: dict[str, Path | None],
    stop: Callable[[], bool],
) -> Iterator[Trained]:
    """Both runs in turns, a few steps each; neither changes a number of the other."""
    running: dict[str, Iterator[Event]] = {}
    for side, model in models.items():
        folder = folders[side]
        resume = folder if folder is not None and checkpoints(folder) else None
        running[side] = train(model, data, config, out=folder, resume=resume, stop=stop)
    at = dict.fromkeys(running, 0)
    while running:
        # Whoever is behind goes on; what is read of a run lies between two steps of it.
        side = min(running, key=lambda side: at[side])
        event = next(running[side], None)
        if event is None:
            del running[side]
            continue
        if isinstance(event, Stopped):
            # The other hears it too at its next step: it saves, and stops.
            for other in running.keys() - {side}:
                yield from (Trained(other, last) for last in running[other] if not isinstance(last, Stopped))
        at[side] = event.step
        yield Trained(side, event)
        if isinstance(event, Stopped):
            return


def _examined(
    side: str,
    model: GPT,
    records: list[dict[str, Any]],
    batch: Batch,
    prompts: list[list[int]],
    settings: Settings,
    stop: Callable[[], bool],
) -> Generator[Progress, None, Examined | None]:
    """The exam of one model; None when it was stopped."""
    model.eval()
    exam = yield from _told(side, "exam", from_prefixes(model, batch), stop)
    if exam is None:
        return None
    writing = written(
        model,
        prompts,
        new_tokens=settings.new_tokens,
        temperature=settings.temperature,
        seed=settings.training.seed,
    )
    texts = yield from _told(side, "writing", writing, stop)
    return None if texts is None else Examined(model, records, exam, from_whole_windows(model, batch), texts)


def _told(
    side: str, doing: str, steps: Generator[tuple[int, int], None, Result], stop: Callable[[], bool]
) -> Generator[Progress, None, Result | None]:
    while not stop():
        try:
            done, total = next(steps)
        except StopIteration as end:
            return end.value
        yield Progress(side, doing, done, total)
    return None


def _model(data: TextData, settings: Settings, mask: Mask) -> GPT:
    model = new_model(
        "gpt",
        data.tokenizer,
        context=settings.context,
        layers=settings.layers,
        heads=settings.heads,
        width=settings.width,
        positions=settings.positions,
        dropout=settings.dropout,
        mask=mask,
        seed=settings.training.seed,
    )
    assert isinstance(model, GPT)
    return model


def _check_equal(models: dict[str, GPT]) -> None:
    first, second = (model.state_dict() for model in models.values())
    assert all(torch.equal(first[name], second[name]) for name in first), "one seed gives one start"


def _conditions(
    data: TextData, settings: Settings, model: GPT, precision: str, windows: int, *, name: str, command: str
) -> Conditions:
    versions = {"rearview": _version(), "torch": torch.__version__, "python": platform.python_version()}
    return Conditions(
        settings=settings.to_json(),
        text=name or "a text",
        command=command or f"compare(data, {settings!r})",
        fingerprint=data.fingerprint,
        characters=data.characters,
        documents=data.documents,
        tokenizer=data.tokenizer.kind,
        vocab_size=data.tokenizer.vocab_size,
        parameters=model.num_parameters(),
        exam_windows=windows,
        precision=precision,
        threads=torch.get_num_threads(),
        versions=versions,
    )


def _version() -> str:
    try:
        return metadata.version("rearview")
    except metadata.PackageNotFoundError:
        return "from its source"
