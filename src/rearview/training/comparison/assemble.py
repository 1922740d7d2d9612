"""From what two models did to a Comparison: the means, the bits, the shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rearview.models import GPT
from rearview.training.batches import Batch
from rearview.training.comparison.baselines import baselines
from rearview.training.comparison.exam import Marks, bits, check_same
from rearview.training.comparison.heard import attention_of, rows_of_one_document, sentence_of, to_the_answer
from rearview.training.comparison.result import Attention, Comparison, Conditions, Score, Side, Writing
from rearview.training.comparison.writing import known_words, labels_of, repeated, words_of
from rearview.training.corpus import Corpus
from rearview.training.data import TextData


@dataclass(frozen=True)
class Examined:
    """A trained model, what it was trained with, and what it did in the exam."""

    model: GPT
    records: list[dict[str, Any]]
    exam: Marks
    at_once: Marks
    texts: list[list[int]]


def assembled(
    ours: Examined,
    theirs: Examined,
    data: TextData,
    batch: Batch,
    prompts: Sequence[Sequence[int]],
    continuations: Sequence[Sequence[int]],
    *,
    conditions: Conditions,
) -> Comparison:
    """`ours`: with the mask. `theirs`: without it."""
    self_check = check_same(ours.exam, ours.at_once)
    held_out, decode = data.validation, data.tokenizer.decode
    words = words_of(data)
    rows = rows_of_one_document(batch)
    shown = sentence_of(rows, lambda row: labels_of(row, data.tokenizer))

    def writing(texts: Sequence[Sequence[int]]) -> Writing:
        plain = tuple(map(decode, texts))
        known = known_words("\n".join(plain), words)
        return Writing(plain, sum(map(repeated, plain)) / len(plain), known)

    def side(one: Examined) -> Side:
        return Side(
            mask=repr(one.model.config.mask),
            training=tuple((record["step"], record["loss"]) for record in one.records if "loss" in record),
            validation=tuple(
                (record["step"], record["validation"]) for record in one.records if "validation" in record
            ),
            at_once=_score(one.at_once, held_out),
            exam=_score(one.exam, held_out),
            exam_by_prefix=tuple(bits(loss, held_out) for loss in one.exam.losses.mean(dim=0).tolist()),
            writing=writing(one.texts),
            attention=Attention(
                weights=_ten_thousandths(attention_of(one.model, shown.unsqueeze(0))[:, 0]),
                to_answer=tuple(map(tuple, to_the_answer(attention_of(one.model, rows)).tolist())),
            ),
        )

    # Of the difference itself, window by window: what makes a window hard for both cancels out.
    difference = (theirs.exam.losses - ours.exam.losses).mean(dim=1)
    error = float(difference.std()) / len(difference) ** 0.5 if len(difference) > 1 else float(difference.abs()[0])
    loss_of_tables = baselines(data.train, batch, vocab_size=data.tokenizer.vocab_size)
    return Comparison(
        conditions=conditions,
        with_mask=side(ours),
        without_mask=side(theirs),
        baselines=loss_of_tables.scaled(bits(1.0, held_out)),
        exam_error=bits(error, held_out),
        self_check=self_check,
        prompts=tuple(map(decode, prompts)),
        continuations=writing(continuations),
        shown=labels_of(shown, data.tokenizer),
    )


def _score(marks: Marks, held_out: Corpus) -> Score:
    loss = float(marks.losses.mean())
    return Score(loss, bits(loss, held_out), float(marks.right.float().mean()))


def _ten_thousandths(weights: Any) -> tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]:
    return tuple(
        tuple(tuple(tuple(row) for row in head) for head in layer)
        for layer in (weights * 10_000).round().int().tolist()
    )
