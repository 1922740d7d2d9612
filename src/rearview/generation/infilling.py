"""fill(): the most probable tokens at masked positions, by BERT, which hears both sides of a gap.

>>> from rearview.models import BERT, BERTConfig
>>> from rearview.text import CharTokenizer
>>> tokenizer = CharTokenizer("abc", specials=("<end>", "<mask>"))
>>> model = BERT(BERTConfig(vocab_size=tokenizer.vocab_size, context=8, layers=1, heads=2, width=8))
>>> (gap,) = fill(model, tokenizer, "ab[MASK]ba", top=2)
>>> gap.position, len(gap.candidates)
(2, 2)
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import torch

from rearview.errors import BadArgument
from rearview.generation.inference import inference
from rearview.masks.frame import whole_number
from rearview.models import BERT
from rearview.text import Tokenizer

# The spellings of the mask token in tokenizers. A text may use either.
SPELLINGS = ("[MASK]", "<mask>")


@dataclass(frozen=True)
class Candidate:
    """A token that may fill a gap."""

    id: int
    text: str
    probability: float


@dataclass(frozen=True)
class Gap:
    """A masked position, counted in tokens, and its candidates, the most probable first."""

    position: int
    candidates: tuple[Candidate, ...]


def fill(model: BERT, tokenizer: Tokenizer, text: str, *, top: int = 5) -> list[Gap]:
    """The `top` most probable tokens for each [MASK] or <mask> in a text.

    Each gap is predicted independently, with the others still masked.

    >>> from rearview.models import BERT, BERTConfig
    >>> from rearview.text import CharTokenizer
    >>> tokenizer = CharTokenizer("abc", specials=("<mask>",))
    >>> model = BERT(BERTConfig(vocab_size=4, context=8, layers=1, heads=2, width=8))
    >>> [gap.position for gap in fill(model, tokenizer, "a[MASK]b[MASK]")]
    [1, 3]
    """
    if not isinstance(model, BERT):
        advice = "A GPT hears only what precedes a gap, and a T5 writes its answer: call generate()."
        raise BadArgument("model", expected="a BERT", got=type(model).__name__, advice=advice)
    top = whole_number(top, "top", at_least=1)
    ids, gaps = _encoded(text, tokenizer)
    with inference(model):
        logits = model(torch.tensor([ids], device=model.tokens.weight.device))[0, gaps]
        share = logits.double().softmax(-1).cpu()
        best = share.topk(min(top, share.shape[-1]), dim=-1)
    return [
        Gap(position, tuple(Candidate(id, _text(id, tokenizer), p) for p, id in zip(probabilities, found, strict=True)))
        for position, probabilities, found in zip(gaps, best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _encoded(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    if tokenizer.mask_id is None:
        raise BadArgument("tokenizer", expected="a tokenizer with a mask token", got="one without")
    pattern = "|".join(map(re.escape, SPELLINGS))
    ids = tokenizer.encode(re.sub(pattern, _spelling(tokenizer), text), specials=True)
    gaps = [n for n, id in enumerate(ids) if id == tokenizer.mask_id]
    if not gaps:
        raise BadArgument("text", expected="at least one [MASK] to fill", got=repr(text))
    return ids, gaps


def _spelling(tokenizer: Tokenizer) -> str:
    """The spelling of the mask token that this tokenizer recognizes."""
    for spelling in SPELLINGS:
        with contextlib.suppress(BadArgument):
            if tokenizer.mask_id in tokenizer.encode(spelling, specials=True):
                return spelling
    return SPELLINGS[0]


def _text(id: int, tokenizer: Tokenizer) -> str:
    return tokenizer.decode([id]) if id < tokenizer.vocab_size else ""
