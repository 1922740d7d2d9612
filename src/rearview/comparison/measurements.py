"""The measurements of two trained models, joined to a Comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rearview.comparison.attention import attention_of, most_readable, rows_of_one_document
from rearview.comparison.baselines import baselines
from rearview.comparison.continuations import known_words, labels_of, repetition, vocabulary_of
from rearview.comparison.exam import ExamScores, check_same
from rearview.comparison.result import Comparison, Conditions, Score, Side, Writing
from rearview.models import GPT
from rearview.training.batches import Batch
from rearview.training.corpus import Corpus
from rearview.training.data import TextData
from rearview.training.metrics import MetricsRecord


@dataclass(frozen=True)
class Examined:
    """A trained model, the metrics of its training, and its answers in the exam."""

    model: GPT
    metrics: list[MetricsRecord]
    exam: ExamScores
    at_once: ExamScores
    texts: list[list[int]]


def comparison_of(
    ours: Examined,
    theirs: Examined,
    data: TextData,
    batch: Batch,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    *,
    conditions: Conditions,
) -> Comparison:
    """The comparison of `ours`, the model with the mask, and `theirs`, the one without it."""
    self_check = check_same(ours.exam, ours.at_once)
    held_out, decode = data.validation, data.tokenizer.decode
    vocabulary = vocabulary_of(data)
    rows = rows_of_one_document(batch)
    shown = most_readable(rows, lambda row: labels_of(row.tolist(), data.tokenizer))

    def writing(texts: Sequence[Sequence[int]]) -> Writing:
        plain = tuple(map(decode, texts))
        known = known_words("\n".join(plain), vocabulary)
        return Writing(plain, sum(map(repetition, plain)) / len(plain), known)

    def side(one: Examined) -> Side:
        return Side(
            mask=repr(one.model.config.mask),
            training=tuple((record["step"], record["loss"]) for record in one.metrics if "loss" in record),
            validation=tuple(
                (record["step"], record["validation"]) for record in one.metrics if "validation" in record
            ),
            at_once=_score(one.at_once, held_out),
            exam=_score(one.exam, held_out),
            exam_by_prefix=tuple(map(held_out.bits_per_character, one.exam.losses.mean(dim=0).tolist())),
            writing=writing(one.texts),
            attention=attention_of(one.model, rows, shown=shown),
        )

    losses = baselines(data.train, batch, vocab_size=data.tokenizer.vocab_size)
    return Comparison(
        conditions=conditions,
        with_mask=side(ours),
        without_mask=side(theirs),
        baselines=losses.scaled(held_out.bits_per_character(1.0)),
        exam_error=held_out.bits_per_character(_error_of_difference(ours.exam, theirs.exam)),
        at_once_error=held_out.bits_per_character(_error_of_difference(ours.at_once, theirs.at_once)),
        self_check=self_check,
        prompts=tuple(map(decode, prompts)),
        continuations=writing(continuations),
        shown=labels_of(rows[shown].tolist(), data.tokenizer),
    )


def _error_of_difference(ours: ExamScores, theirs: ExamScores) -> float:
    """The standard error, window by window: what makes a window hard for both models cancels out."""
    difference = (theirs.losses - ours.losses).mean(dim=1)
    return float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else float(difference.abs()[0])


def _score(scores: ExamScores, held_out: Corpus) -> Score:
    loss = float(scores.losses.mean())
    return Score(loss, held_out.bits_per_character(loss), float(scores.right.float().mean()))
