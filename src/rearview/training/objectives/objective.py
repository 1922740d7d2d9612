"""The objective of each kind of model.

>>> from rearview.models import GPT, GPTConfig
>>> from rearview.text import ByteTokenizer
>>> model = GPT(GPTConfig(vocab_size=257, context=8, layers=1, heads=1, width=4))
>>> type(objective_of(model, ByteTokenizer())).__name__
'NextToken'
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

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
    """The loss of a model on a batch."""

    def loss(self, model: nn.Module, batch: Batch, generator: torch.Generator) -> Tensor:
        """A scalar; random choices are drawn from `generator`."""
        ...


class Question(Protocol):
    """Rows for a model to read, with targets; random choices have been made."""

    @property
    def targets(self) -> Tensor:
        """The token to predict at each position; `NO_TARGET` where there is none."""
        ...

    def logits(self, model: nn.Module) -> Tensor: ...

    def rows(self, part: slice) -> Question: ...


@runtime_checkable
class DivisibleObjective(Objective, Protocol):
    """An objective whose batches can be divided between processes: its random choices are made for the whole batch."""

    def prepare(self, batch: Batch, generator: torch.Generator) -> Question: ...


def specials_for(kind: str, context: int) -> tuple[str, ...]:
    """The special tokens that a model of this kind needs, for rows of `context` tokens.

    >>> specials_for("bert", 128)
    ('<end>', '<mask>', '<pad>')
    """
    if kind == "bert":
        return (END, MASK, PAD)
    if kind == "t5":
        # There is about one span per twenty tokens; a few more sentinels allow for longer texts later.
        return (END, PAD, *(sentinel(n) for n in range(max(16, context // 16))))
    return (END,)


def objective_of(model: nn.Module, tokenizer: Tokenizer) -> Objective:
    """The objective of a model: `NextToken` for a GPT, `MaskedTokens` for a BERT, `HiddenSpans` for a T5."""
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
    raise BadArgument("model", expected="a GPT, BERT or T5, or any module with an objective=", got=type(model).__name__)


def _lacks(name: str, model: str) -> BadArgument:
    advice = f'Create it with specials=specials_for("{model.lower()}", context).'
    return BadArgument(
        "tokenizer",
        expected=f"a tokenizer with the token {name}, which a {model} needs",
        got="one without it",
        advice=advice,
    )
