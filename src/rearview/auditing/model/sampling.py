"""New values for some positions of an input: tokens that differ from the old ones, or floats of the same kind.

>>> import torch
>>> from rearview.auditing.model.sampling import InputSampler
>>> x = torch.zeros(1, 4, dtype=torch.long)
>>> sampler = InputSampler.of(x, vocab=9)
>>> new = sampler.change(x, torch.tensor([[False, False, True, True]]), torch.Generator().manual_seed(0))
>>> (new != x).tolist()
[[False, False, True, True]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rearview.errors import BadArgument

# What is drawn: values like the given ones; floats a hundred times as large, since what is gated, rounded away or
# outweighed at ordinary size may open for a large input; tokens that models treat specially (padding, first, last).
Draw = Literal["ordinary", "large", "rare"]
LARGE = 100.0


@dataclass(frozen=True, eq=False)
class InputSampler:
    """Draws values for positions. `tokens` are the ids to draw from; None for floats."""

    tokens: Tensor | None
    vocab: int | None
    mean: float = 0.0
    spread: float = 1.0
    rare: Tensor | None = None
    """Tokens that a model may treat specially."""

    @classmethod
    def of(
        cls, x: Tensor, *, vocab: int | None = None, model: object = None, looked_up: int | None = None
    ) -> InputSampler:
        """Draw tokens from the given vocabulary, else the embedding that the input went into, else the configured
        vocabulary, else the values that occur in the input."""
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
            advice = "Give vocab=, the number of tokens of the model."
            raise BadArgument(
                "inputs", expected="at least two different tokens", got=f"only {ids.tolist()}", advice=advice
            )
        rare = sorted({int(ids[0]), int(ids[-1]), *(pad_tokens(model) if size is not None else ())})
        return cls(ids.to(x.dtype), size, rare=torch.tensor(rare, dtype=x.dtype))

    @property
    def draws(self) -> tuple[Draw, ...]:
        """The kinds of draws worth trying."""
        if self.tokens is None:
            return ("ordinary", "large")
        return ("ordinary",) if self.rare is None else ("ordinary", "rare")

    def change(self, x: Tensor, where: Tensor, generator: torch.Generator, draw: Draw = "ordinary") -> Tensor:
        """`x` [rows, time, ...] with other values at `where`, bool [rows, time]."""
        where = where.to(x.device).reshape(*where.shape, *(1,) * (x.ndim - 2)).expand(x.shape)
        if self.tokens is None:
            spread = self.spread * (LARGE if draw == "large" else 1.0)
            drawn = torch.randn(x.shape, generator=generator, dtype=torch.float64) * spread + self.mean
            return torch.where(where, drawn.to(x.device, x.dtype), x)
        place = torch.randint(len(self.tokens), x.shape, generator=generator)
        drawn = self.tokens[place].to(x.device)
        if draw == "rare" and self.rare is not None:
            chosen = self.rare[torch.randint(len(self.rare), x.shape, generator=generator)].to(x.device)
            drawn = torch.where((torch.rand(x.shape, generator=generator) < 0.6).to(x.device), chosen, drawn)
        other = self.tokens[(place + 1) % len(self.tokens)].to(x.device)
        return torch.where(where, torch.where(drawn == x, other, drawn), x)


def configured_vocab(model: object) -> int | None:
    """The size of the vocabulary by the configuration of the model."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    size = getattr(text, "vocab_size", None)
    return size if isinstance(size, int) and size > 1 else None


def special_tokens(model: object) -> set[int]:
    """Ids with a special meaning (padding, an image): drawing one would change more than a word."""
    config: Any = getattr(model, "config", None)
    texts = [config, config.get_text_config() if hasattr(config, "get_text_config") else None]
    found: set[int] = set()
    for text in texts:
        for name, value in vars(text).items() if text is not None and hasattr(text, "__dict__") else ():
            if name.endswith(("_token_id", "_token_index", "token_ids")):
                found |= {n for n in (value if isinstance(value, Iterable) else [value]) if isinstance(n, int)}
    return found


def pad_tokens(model: object) -> set[int]:
    """Ids that pad, begin or end a text, where the configuration names them."""
    config: Any = getattr(model, "config", None)
    found = (getattr(config, name, None) for name in ("pad_token_id", "eos_token_id", "bos_token_id"))
    size = configured_vocab(model) or 0
    return {value for value in found if isinstance(value, int) and 0 <= value < size}


def lookup_size(model: object, x: Tensor, run: Callable[[], None]) -> int | None:
    """The size of the embedding that the input goes into during `run()`; None where there is none."""
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
