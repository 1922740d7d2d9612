"""New models and tokenizers, by name.

>>> from rearview.training.factory import new_model, new_tokenizer
>>> tokenizer = new_tokenizer("chars", ["to be or not to be"], kind="bert", context=16)
>>> model = new_model("bert", tokenizer, context=16, layers=1, heads=2, width=8)
>>> type(model).__name__, model.config.vocab_size
('BERT', 10)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch

from rearview.errors import BadArgument
from rearview.masks import Mask, causal
from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config
from rearview.text import BPETokenizer, ByteTokenizer, CharTokenizer, Tokenizer
from rearview.training.objectives import specials_for
from rearview.training.randomness import seed_of

KINDS = ("gpt", "bert", "t5")
TOKENIZERS = ("bytes", "chars", "bpe")


def new_tokenizer(
    name: str, texts: Iterable[str], *, kind: str = "gpt", context: int = 128, vocab_size: int | None = None
) -> Tokenizer:
    """A tokenizer for these texts, with the special tokens that a model of this kind needs."""
    specials = specials_for(_known("model", kind, KINDS), context)
    _known("tokenizer", name, TOKENIZERS)
    if vocab_size is not None and name != "bpe":
        advice = "Omit vocab_size, or use the tokenizer bpe."
        raise BadArgument(
            "vocab_size", expected=f"none: the tokenizer {name} determines it", got=vocab_size, advice=advice
        )
    if name == "bpe":
        return BPETokenizer.train(texts, 2048 if vocab_size is None else vocab_size, specials)
    return ByteTokenizer(specials) if name == "bytes" else CharTokenizer.of(texts, specials)


def new_model(
    kind: str,
    tokenizer: Tokenizer,
    *,
    context: int = 128,
    layers: int = 4,
    heads: int = 4,
    width: int = 128,
    kv_heads: int | None = None,
    positions: Literal["learned", "rotary"] = "learned",
    mask: Mask = causal(),
    dropout: float = 0.0,
    seed: int = 0,
) -> GPT | BERT | T5:
    """A model whose weights depend on the seed alone. Only a GPT has `kv_heads`, `positions` and a `mask`."""
    _known("model", kind, KINDS)
    sizes = {"vocab_size": tokenizer.vocab_size, "layers": layers, "heads": heads, "width": width, "dropout": dropout}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed_of(seed, "weights"))
        if kind == "gpt":
            return GPT(GPTConfig(**sizes, context=context, kv_heads=kv_heads, positions=positions, mask=mask))
        chosen = {"kv_heads": kv_heads is not None, "positions": positions != "learned"}
        chosen["mask"] = not mask.is_causal
        for name in (name for name, given in chosen.items() if given):
            raise BadArgument(name, expected="none: only a GPT has this setting", got=f"{name} for a {kind}")
        if kind == "bert":
            return BERT(BERTConfig(**sizes, context=context))
        return T5(T5Config(**sizes, start_id=tokenizer.pad_id or 0, end_id=tokenizer.end_id))


def _known(argument: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        raise BadArgument(argument, expected=" or ".join([", ".join(names[:-1]), names[-1]]), got=repr(name))
    return name
