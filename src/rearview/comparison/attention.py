"""The attention of a trained model, and how much of it goes to the answer.

The answer to position i is the token at i + 1. A head that attends to it reads what the model should predict.

>>> import torch
>>> from rearview import full
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=9, context=4, layers=2, heads=2, width=8, mask=full())).eval()
>>> attention = attention_of(model, torch.tensor([[1, 2, 3, 4]]), shown=0)
>>> len(attention.to_answer), len(attention.weights[0]), abs(sum(attention.weights[0][1][3]) - 10_000) <= 2
(2, 2, True)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rearview.comparison.result import Attention
from rearview.models import GPT
from rearview.observation import observe
from rearview.training.batches import Batch

# The most tokens in a map of the report: more could not be told apart.
MOST_SHOWN = 64
# The rows over which the attention to the answer is averaged.
ROWS = 32


@torch.no_grad()
def attention_of(model: GPT, rows: Tensor, *, shown: int) -> Attention:
    """The exact weights of every head on the row `shown`, and the share of the answer over all rows."""
    with observe(model, map_size=None, links=0, keep=True) as seen:
        model(rows)
    weights, to_answer = [], []
    for layer in seen.layers:
        heads = [torch.stack([seen.tile(layer, head, item=row) for row in range(len(rows))]) for head in layer.heads]
        weights.append(tuple(_ten_thousandths(head[shown]) for head in heads))
        to_answer.append(tuple(share_of_answer(head) for head in heads))
    return Attention(weights=tuple(weights), to_answer=tuple(to_answer))


def share_of_answer(weights: Tensor) -> float:
    """The mean weight of the next token, in weights [rows, query, key]."""
    return float(weights.diagonal(offset=1, dim1=-2, dim2=-1).mean())


def rows_of_one_document(batch: Batch, *, most: int = ROWS) -> Tensor:
    """Rows without a boundary between documents: every token but the last has its answer in the row."""
    rows = batch.tokens if batch.ids is None else batch.tokens[batch.ids[:, -1] == 0]
    # A text of many tiny documents has no such rows; then boundaries are ignored.
    return (rows if len(rows) else batch.tokens)[:most, :MOST_SHOWN]


def most_readable(rows: Tensor, labels: Callable[[Tensor], Sequence[str]]) -> int:
    """The row to show: one that starts with a sentence, or at least with a word, and has many letters."""

    def readability(row: Tensor) -> tuple[int, int]:
        text = labels(row)
        first, letters = text[0], sum(label.isalpha() for label in text)
        return (2 if first.isupper() else 1 if first.isspace() or first == "<end>" else 0), letters

    return max(range(len(rows)), key=lambda n: readability(rows[n]))


def _ten_thousandths(weights: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, (weights * 10_000).round().int().tolist()))
