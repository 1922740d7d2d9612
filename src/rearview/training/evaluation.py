"""The loss on held-out text: the same text every time.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> from rearview.training import NextToken, TextData
>>> data = TextData.of(["to be or not to be " * 9], ByteTokenizer())
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=1, width=4))
>>> found = evaluate(model, NextToken(), data.validation, context=8)
>>> 5.4 < found.loss < 5.7, 7.8 < found.bits_per_character < 8.2
(True, True)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from rearview.training.batches import in_order
from rearview.training.corpus import Corpus
from rearview.training.objectives import Objective
from rearview.training.processes.division import Division
from rearview.training.randomness import generator_of

# Without gradients there is memory for more rows than in training.
TOKENS_AT_ONCE = 4096


@dataclass(frozen=True)
class Evaluation:
    """The loss in nats per target, and in bits per character of the text."""

    loss: float
    bits_per_character: float


@torch.no_grad()
def evaluate(
    model: nn.Module,
    objective: Objective,
    corpus: Corpus,
    *,
    context: int,
    most_tokens: int = 65536,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    division: Division | None = None,
) -> Evaluation:
    """The mean loss over a corpus, or over `most_tokens` of it, evenly spread.

    With a `division`, the processes of a world each compute a part, and all get the result.
    """
    device = next(model.parameters()).device
    generator = generator_of(seed, "validation")
    was_training = model.training
    model.eval()
    total, rows = 0.0, 0
    try:
        for batch in in_order(
            corpus, context=context, batch=max(1, TOKENS_AT_ONCE // context), most_tokens=most_tokens
        ):
            if division is not None:
                loss = division.world.sum(division.loss(model, batch.to(device), generator, dtype=dtype))
            else:
                with torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
                    loss = objective.loss(model, batch.to(device), generator)
            total += float(loss) * len(batch.tokens)
            rows += len(batch.tokens)
    finally:
        model.train(was_training)
    loss = total / rows
    return Evaluation(loss, corpus.bits_per_character(loss))
