"""The exam: each next token is predicted from its prefix alone, as in generation.

The model is run on every prefix of a window, and only its prediction at the last position counts. The code is the same
for both models. A model that only looks back must get the same losses as when it reads the whole window, because
nothing that it uses is missing. A model that looks ahead need not.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.training.batches import Batch
>>> model = GPT(GPTConfig(vocab_size=9, context=4, layers=1, heads=1, width=8)).eval()
>>> batch = Batch(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 3, 4, 5]]))
>>> exam, at_once = finish(from_prefixes(model, batch)), from_whole_windows(model, batch)
>>> exam.losses.shape, check_same(exam, at_once) < 1e-5
(torch.Size([1, 4]), True)
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypedDict, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.errors import RearviewError
from rearview.masks import Mask, documents
from rearview.training.batches import Batch, in_order
from rearview.training.corpus import Corpus

# Products of other shapes add in another order, so the losses are equal up to rounding.
ROUNDING = 1e-3

Result = TypeVar("Result")


@dataclass(frozen=True)
class ExamScores:
    """Per token, [windows, time]: the loss in nats, and whether the most probable token is the right one."""

    losses: Tensor
    right: Tensor


class NotTheSame(RearviewError):
    """The exam and the validation of a model that only looks back differ, so one of them is wrong."""


def exam_batch(corpus: Corpus, *, context: int, windows: int) -> Batch:
    """Windows of held-out text, evenly spread; all of them, if there are fewer."""
    (batch,) = in_order(corpus, context=context, batch=windows, most_tokens=windows * context)
    return batch


@torch.no_grad()
def from_whole_windows(model: nn.Module, batch: Batch) -> ExamScores:
    """Ordinary validation: the model reads each window at once, with the future tokens that its mask allows."""
    return _scores(model(batch.tokens, **_separation(batch, batch.tokens.shape[1])), batch.targets)


def from_prefixes(model: nn.Module, batch: Batch) -> Generator[tuple[int, int], None, ExamScores]:
    """The exam. Yields the number of prefixes done, and of all prefixes; returns the scores."""
    length = batch.tokens.shape[1]
    columns = []
    for count in range(1, length + 1):
        with torch.no_grad():
            logits = model(batch.tokens[:, :count], last_only=True, **_separation(batch, count))
        columns.append(_scores(logits, batch.targets[:, count - 1 : count]))
        yield count, length
    return ExamScores(*(torch.cat([getattr(c, name) for c in columns], dim=1) for name in ("losses", "right")))


def finish(steps: Generator[object, None, Result]) -> Result:
    """The result of a generator, without its progress."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def check_same(exam: ExamScores, at_once: ExamScores) -> float:
    """The largest difference between two losses of a model that only looks back; more than rounding is an error."""
    largest = float((exam.losses - at_once.losses).abs().max())
    if not largest <= ROUNDING:
        raise NotTheSame(
            "The exam of the model with the mask should equal its validation on the same text up to rounding "
            f"({ROUNDING:g}), but differs by {largest:g}. Either its mask looks ahead, or this is a bug."
        )
    return largest


class _Separation(TypedDict, total=False):
    mask: Mask
    positions: Tensor


def _separation(batch: Batch, count: int) -> _Separation:
    """Documents in one row do not hear each other, as in training."""
    if batch.ids is None or batch.positions is None:
        return {}
    return {"mask": documents(batch.ids[:, :count]), "positions": batch.positions[:, :count]}


def _scores(logits: Tensor, targets: Tensor) -> ExamScores:
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return ExamScores(losses.view(targets.shape), logits.argmax(dim=-1) == targets)
