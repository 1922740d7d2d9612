"""A comparison with numbers that a test chooses, and one that is trained in a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rearview.comparison import (
    Attention,
    Comparison,
    Conditions,
    Score,
    Settings,
    Side,
    Writing,
)
from rearview.comparison.baselines import Baselines
from rearview.comparison.exam import exam_batch
from rearview.masks import Mask, causal
from rearview.models import GPT
from rearview.text import CharTokenizer
from rearview.training import TextData
from rearview.training.batches import Batch
from rearview.training.factory import new_model

TEXTS = [
    "To be, or not to be, that is the question. " * 12,
    "Whether it is nobler in the mind to suffer. " * 3,
    "The slings and arrows of outrageous fortune. " * 4,
]
SETTINGS = Settings(
    context=12, layers=2, heads=2, width=16, exam_windows=6, prompts=2, new_tokens=10, steps=20, batch=4, warmup=2,
    eval_every=10, save_every=7, log_every=5, precision="float32",
)  # fmt: skip


def a_text() -> TextData:
    return TextData.of(TEXTS, CharTokenizer.of(TEXTS), validation=0.4)


def a_model(mask: Mask = causal(), **changes: Any) -> GPT:
    model = new_model("gpt", a_text().tokenizer, context=12, layers=2, heads=2, width=16, mask=mask, **changes)
    assert isinstance(model, GPT)
    return model.eval()


def windows() -> Batch:
    """Some of them hold the end of one document and the beginning of the next."""
    batch = exam_batch(a_text().validation, context=12, windows=100)
    assert batch.ids is not None
    assert bool((batch.ids[:, -1] > 0).any())
    return batch


def a_side(*, at_once: float, exam: float, final: float, mask: str, answer: float, **changes: Any) -> Side:
    row = (int(1e4 * answer), int(1e4 * (1 - answer)))
    head = (row, (2500, 7500)) if mask == "full()" else ((10_000, 0), (2500, 7500))
    side = Side(
        mask=mask,
        training=tuple((step, final + 3.0 / step) for step in range(1, 101)),
        validation=((50, final + 0.5), (100, final + 0.1)),
        at_once=Score(at_once * 0.693, at_once, 0.5),
        exam=Score(exam * 0.693, exam, 0.25),
        exam_by_prefix=(exam, exam),
        writing=Writing((" and so on", " < & >"), 0.25, 0.8),
        attention=Attention(((head, head),), ((answer, answer / 2),)),
    )
    return replace(side, **changes)


def a_comparison(
    *,
    with_mask: float = 2.0,
    loss: float = 0.1,
    exam: float = 9.0,
    tables: tuple[float, float, float | None] = (6.7, 4.7, 3.3),
    error: float = 0.05,
    loss_error: float = 0.0,
    **changes: Any,
) -> Comparison:
    """`with_mask`: bits with the mask, in both; `loss` and `exam`: those without it; `tables`: even, singles, pairs."""
    comparison = Comparison(
        conditions=Conditions(
            settings=SETTINGS,
            text="a text",
            command="rearview compare --text 'a text'",
            fingerprint="0123456789abcdef",
            characters=1000,
            documents=2,
            tokenizer="characters",
            vocab_size=104,
            parameters=9,
            exam_windows=6,
            precision="float32",
            threads=1,
            versions={"rearview": "0", "torch": "2"},
        ),
        with_mask=a_side(at_once=with_mask, exam=with_mask, final=1.4, mask="causal()", answer=0.0),
        without_mask=a_side(at_once=loss, exam=exam, final=loss * 0.693, mask="full()", answer=0.75),
        baselines=Baselines(*tables),
        exam_error=error,
        at_once_error=loss_error,
        self_check=2e-6,
        prompts=("To be", "or not"),
        continuations=Writing((" that is", " the question"), 0.0, 1.0),
        shown=("a", "\n"),
    )
    return replace(comparison, **changes)
