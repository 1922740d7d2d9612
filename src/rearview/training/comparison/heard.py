"""Who hears whom in a trained model: the exact weights of every head, and how much goes to the answer.

The answer to position i is the token at i + 1. A head that puts its weight there reads what it should predict.

>>> import torch
>>> from rearview import full
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=9, context=4, layers=2, heads=2, width=8, mask=full())).eval()
>>> weights = attention_of(model, torch.tensor([[1, 2, 3, 4]]))
>>> weights.shape, bool((weights.sum(-1) - 1).abs().max() < 1e-5)
(torch.Size([2, 1, 2, 4, 4]), True)
>>> to_the_answer(weights).shape
torch.Size([2, 2])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.attention import weights
from rearview.models import GPT
from rearview.models.attention import SelfAttention
from rearview.training.batches import Batch

# The map of a page: more tokens could not be told apart.
MOST_SHOWN = 64
# Rows over which the share of the answer is averaged.
ROWS = 32


@torch.no_grad()
def attention_of(model: GPT, tokens: Tensor) -> Tensor:
    """The weights of every layer and head: [layers, batch, heads, query, key]."""
    found: list[Tensor] = []

    def look(module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        assert isinstance(module, SelfAttention)
        query, key, _ = module.project(inputs[0], options["turn"])
        found.append(weights(query, key, mask=options["mask"], scale=module.scale))

    hooks = [block.attention.register_forward_pre_hook(look, with_kwargs=True) for block in model.blocks]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


def to_the_answer(weights: Tensor) -> Tensor:
    """The share of attention that goes to the next token, of each layer and head: [layers, heads]."""
    return weights.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=(1, 3))


def rows_of_one_document(batch: Batch, *, most: int = ROWS) -> Tensor:
    """Windows without a boundary: every position has its answer in sight, unless a mask hides it."""
    rows = batch.tokens if batch.ids is None else batch.tokens[batch.ids[:, -1] == 0]
    # A text of many tiny documents has none; then the rows are read as if they were one.
    return (rows if len(rows) else batch.tokens)[:most, :MOST_SHOWN]


def sentence_of(rows: Tensor, labels: Any) -> Tensor:
    """The row that is nicest to look at: it starts a sentence, or at least a word, and has many letters."""

    def niceness(row: Tensor) -> tuple[int, int]:
        text = labels(row)
        first, letters = text[0], sum(label.isalpha() for label in text)
        return (2 if first.isupper() else 1 if first.isspace() or first == "<end>" else 0), letters

    best = max(range(len(rows)), key=lambda n: niceness(rows[n]))
    return rows[best]
