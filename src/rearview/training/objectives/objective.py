"""Which objective belongs to which model.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=1, width=4))
>>> type(objective_of(model, ByteTokenizer())).__name__
'NextToken'
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument
from rearview.models import BERT, GPT, T5
from rearview.text import END, MASK, PAD, Tokenizer, sentinel
from rearview.training.batches import Batch
from rearview.training.objectives.masked import MaskedTokens
from rearview.training.objectives.next_token import NextToken
from rearview.training.objectives.spans import HiddenSpans


class Objective(Protocol):
    """What is asked of a model on a batch. `covers_text`: is every token of the text a target, once?"""

    covers_text: bool

    def loss(self, model: Any, batch: Batch, generator: torch.Generator) -> Tensor: ...


def specials_for(kind: str, context: int) -> tuple[str, ...]:
    """The special tokens that a model of this kind needs, in texts of this length.

    >>> specials_for("bert", 128)
    ('<end>', '<mask>', '<pad>')
    """
    if kind == "bert":
        return (END, MASK, PAD)
    if kind == "t5":
        # A span for every twenty tokens is what is asked for; some more, for longer texts later.
        return (END, PAD, *(sentinel(n) for n in range(max(16, context // 16))))
    return (END,)


def objective_of(model: nn.Module, tokenizer: Tokenizer) -> Objective:
    """The next token for a GPT, hidden tokens for a BERT, hidden spans for a T5."""
    if isinstance(model, GPT):
        return NextToken()
    if isinstance(model, BERT):
        if tokenizer.mask_id is None:
            raise _lacks(MASK, "BERT")
        known = (tokenizer.end_id, tokenizer.mask_id, tokenizer.pad_id, *tokenizer.sentinel_ids)
        special_ids = [id for id in known if id is not None]
        return MaskedTokens(mask_id=tokenizer.mask_id, vocab_size=tokenizer.vocab_size, special_ids=special_ids)
    if isinstance(model, T5):
        if not tokenizer.sentinel_ids:
            raise _lacks(sentinel(0), "T5")
        return HiddenSpans(sentinels=tokenizer.sentinel_ids, start_id=model.config.start_id, end_id=model.config.end_id)
    raise BadArgument("model", expected="a GPT, BERT or T5, or an objective of its own", came=type(model).__name__)


def _lacks(name: str, model: str) -> BadArgument:
    advice = f'Make it with specials=specials_for("{model.lower()}", context).'
    return BadArgument(
        "tokenizer", expected=f"one with the token {name}, which a {model} needs", came="none", advice=advice
    )
