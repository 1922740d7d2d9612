"""The exam, where the future does not exist: each next token is predicted from its prefix alone.

For every prefix of a window the model is run on that prefix and nothing else, and only what it says at the last
position counts. The code is the same for both models. A model that only looks back must get the same marks as when it
reads the window at once, since nothing that it uses is missing; a model that looks ahead need not.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.training.batches import Batch
>>> model = GPT(GPTConfig(vocab_size=9, context=4, layers=1, heads=1, width=8)).eval()
>>> batch = Batch(torch.tensor([[1, 2, 3, 4]]), torch.tensor([[2, 3, 4, 5]]))
>>> alone, at_once = finish(from_prefixes(model, batch)), from_whole_windows(model, batch)
>>> alone.losses.shape, bool((alone.losses - at_once.losses).abs().max() < 1e-5)
(torch.Size([1, 4]), True)
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rearview.errors import RearviewError
from rearview.masks import documents
from rearview.training.batches import Batch, in_order
from rearview.training.corpus import Corpus

# A model that looks back reads fewer tokens in other shapes: the same numbers, added up in another order.
ROUNDING = 1e-3

Result = TypeVar("Result")


@dataclass(frozen=True)
class Marks:
    """For every token of every window, [windows, time]: the loss in nats, and whether the first guess was right."""

    losses: Tensor
    right: Tensor


class NotTheSame(RearviewError):
    """The exam and the validation of a model that only looks back differ: one of them is wrong."""


def exam_batch(corpus: Corpus, *, context: int, windows: int) -> Batch:
    """Windows of held-out text, evenly spread; all of it, where there are not as many."""
    (batch,) = in_order(corpus, context=context, batch=windows, most_tokens=windows * context)
    return batch


@torch.no_grad()
def from_whole_windows(model: nn.Module, batch: Batch) -> Marks:
    """Ordinary validation: the window is read at once, and what a model may hear of the future, it hears."""
    return _marks(model(batch.tokens, **_narrowing(batch, batch.tokens.shape[1])), batch.targets)


def from_prefixes(model: nn.Module, batch: Batch) -> Generator[tuple[int, int], None, Marks]:
    """The exam. Yields how many prefixes are done, and of how many; returns the marks."""
    length = batch.tokens.shape[1]
    columns = []
    for count in range(1, length + 1):
        with torch.no_grad():
            logits = model(batch.tokens[:, :count], last_only=True, **_narrowing(batch, count))
        columns.append(_marks(logits, batch.targets[:, count - 1 : count]))
        yield count, length
    return Marks(*(torch.cat([getattr(c, name) for c in columns], dim=1) for name in ("losses", "right")))


def finish(steps: Generator[Any, None, Result]) -> Result:
    """What a generator returns, its progress unseen."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


def check_same(exam: Marks, at_once: Marks) -> float:
    """The largest difference of a loss, for a model that only looks back; more than rounding is an error."""
    largest = float((exam.losses - at_once.losses).abs().max())
    if not largest <= ROUNDING:
        raise NotTheSame(
            "The exam of the model with the mask should equal its validation on the same text to rounding "
            f"({ROUNDING:g}), and differs by {largest:g}. Its mask does not only look back, or this is a bug."
        )
    return largest


def bits(loss: float, corpus: Corpus) -> float:
    """Nats a token as bits a character of this text.

    >>> from rearview.text import CharTokenizer
    >>> round(bits(math.log(2), Corpus.of(["abab"], CharTokenizer("ab"))), 3)
    1.25
    """
    # The first token is nobody's target; the end of a document is a token without a character.
    return loss * (len(corpus) - 1) / max(corpus.characters, 1) / math.log(2)


def _narrowing(batch: Batch, count: int) -> dict[str, Any]:
    """Documents in one row do not hear each other, in the exam as in training."""
    if batch.ids is None or batch.positions is None:
        return {}
    return {"mask": documents(batch.ids[:, :count]), "positions": batch.positions[:, :count]}


def _marks(logits: Tensor, targets: Tensor) -> Marks:
    losses = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return Marks(losses.view(targets.shape), logits.argmax(dim=-1) == targets)
