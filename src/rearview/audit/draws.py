"""New values for some positions of an input: tokens that differ from the old ones, or floats of the same kind.

>>> import torch
>>> from rearview.audit.draws import Drawer
>>> x = torch.zeros(1, 4, dtype=torch.long)
>>> drawer = Drawer.of(x, vocab=9)
>>> new = drawer.change(x, torch.tensor([[False, False, True, True]]), torch.Generator().manual_seed(0))
>>> (new != x).tolist()
[[False, False, True, True]]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument

# Floats are drawn like the given ones, and then a hundred times as large: what is gated, rounded away or outweighed
# at ordinary size may open for a loud input.
ORDINARY, LOUD = 1.0, 100.0
# Tokens are drawn from all, and then mostly from those that models treat apart: padding, the first and the last one.
RARE = -1.0


@dataclass(frozen=True, eq=False)
class Drawer:
    """How to draw a value for a position. `tokens` are the ids to draw from; None for floats."""

    tokens: Tensor | None
    vocab: int | None
    mean: float = 0.0
    spread: float = 1.0
    rare: Tensor | None = None
    """Tokens that a model may treat apart."""

    @classmethod
    def of(cls, x: Tensor, *, vocab: int | None = None, model: Any = None, looked_up: int | None = None) -> Drawer:
        """From what is known: the given vocabulary, the embedding that the input went into, the configuration, or
        the values that are in the input already."""
        if x.is_floating_point() or x.is_complex():
            spread = float(x.detach().double().abs().std()) if x.numel() > 1 else 0.0
            return cls(None, None, float(x.detach().real.double().mean()), spread if 0 < spread < float("inf") else 1.0)
        if x.dtype == torch.bool:
            return cls(torch.tensor([False, True]), 2)
        size = vocab or looked_up or configured_vocab(model)
        ids = torch.unique(x.detach().cpu()) if size is None else torch.arange(size)
        if vocab is None and size is not None:
            special = special_tokens(model)
            ordinary = torch.tensor([n for n in range(size) if n not in special], dtype=torch.long)
            ids = ordinary if len(ordinary) >= 2 else ids
        if len(ids) < 2:
            advice = "Give vocab=, the number of tokens that the model knows."
            raise BadArgument(
                "inputs", expected="at least two different tokens", came=f"only {ids.tolist()}", advice=advice
            )
        rare = sorted({int(ids[0]), int(ids[-1]), *(pad_tokens(model) if size is not None else ())})
        return cls(ids.to(x.dtype), size, rare=torch.tensor(rare, dtype=x.dtype))

    @property
    def kinds(self) -> tuple[float, ...]:
        """The draws worth trying: ordinary ones, and loud or rare ones."""
        if self.tokens is None:
            return (ORDINARY, LOUD)
        return (ORDINARY,) if self.rare is None else (ORDINARY, RARE)

    def change(self, x: Tensor, where: Tensor, generator: torch.Generator, loudness: float = 1.0) -> Tensor:
        """`x` [rows, time, ...] with other values at `where`, bool [rows, time]."""
        where = where.to(x.device).reshape(*where.shape, *(1,) * (x.ndim - 2)).expand(x.shape)
        if self.tokens is None:
            drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64) * self.spread * loudness + self.mean
            return torch.where(where, drawn.to(x.device, x.dtype), x)
        place = torch.randint(len(self.tokens), x.shape, generator=generator)
        drawn = self.tokens[place].to(x.device)
        if loudness == RARE and self.rare is not None:
            chosen = self.rare[torch.randint(len(self.rare), x.shape, generator=generator)].to(x.device)
            drawn = torch.where((torch.rand(x.shape, generator=generator) < 0.6).to(x.device), chosen, drawn)
        other = self.tokens[(place + 1) % len(self.tokens)].to(x.device)
        return torch.where(where, torch.where(drawn == x, other, drawn), x)


def configured_vocab(model: Any) -> int | None:
    """The vocabulary that the configuration of a model states."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    return size if isinstance(size, int) and size > 1 else None


def special_tokens(model: Any) -> set[int]:
    """Ids with a meaning of their own (padding, an image): drawing one would change more than a word."""
    config: Any = getattr(model, "config", None)
    texts = [config, config.get_text_config() if hasattr(config, "get_text_config") else None]
    found: set[int] = set()
    for text in texts:
        for name, value in vars(text).items() if text is not None and hasattr(text, "__dict__") else ():
            if name.endswith(("_token_id", "_token_index", "token_ids")):
                found |= {n for n in (value if isinstance(value, Iterable) else [value]) if isinstance(n, int)}
    return found


def pad_tokens(model: Any) -> set[int]:
    """Ids that pad or end a text, as far as the configuration names them."""
    config: Any = getattr(model, "config", None)
    found = (getattr(config, name, None) for name in ("pad_token_id", "eos_token_id", "bos_token_id"))
    size = configured_vocab(model) or 0
    return {value for value in found if isinstance(value, int) and 0 <= value < size}


def lookup_size(model: Any, x: Tensor, run: Any) -> int | None:
    """The size of the embedding that the input itself went into, seen while `run()` runs."""
    if not isinstance(model, nn.Module) or x.is_floating_point():
        run()
        return None
    sizes: list[int] = []

    def watch(module: nn.Module, args: tuple[Any, ...]) -> None:
        ids = args[0] if args else None
        if (
            isinstance(ids, Tensor)
            and ids.shape == x.shape
            and isinstance(module, nn.Embedding)
            and torch.equal(ids, x)
        ):
            sizes.append(module.num_embeddings)

    hooks = [m.register_forward_pre_hook(watch) for m in model.modules() if isinstance(m, nn.Embedding)]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return min(sizes) if sizes else None
