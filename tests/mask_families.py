"""Every mask family at a size, for the tests that must hold for all of them."""

from collections.abc import Callable

import torch

from rearview import (
    Mask,
    causal,
    chunks,
    dense,
    dilated,
    documents,
    full,
    padding,
    per_head,
    prefix,
    where,
    window,
)

# (batch, heads, length) -> mask, for any length from 1 up.
Family = Callable[[int, int, int], Mask]


def _random(seed: int, *shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def _packed(batch: int, length: int) -> torch.Tensor:
    """Documents of uneven length, packed differently in each item."""
    return (_random(1, batch, length) < 0.06).cumsum(-1)


FAMILIES: dict[str, Family] = {
    "full": lambda b, h, t: full(),
    "causal": lambda b, h, t: causal(),
    "window": lambda b, h, t: window(7),
    "window ahead": lambda b, h, t: window(3, ahead=2),
    "prefix-LM": lambda b, h, t: causal() | prefix(min(5, t)),
    "prefix-LM per item": lambda b, h, t: causal() | prefix([1 + 2 * i for i in range(b)]),
    "sinks and window": lambda b, h, t: (causal() & window(9)) | (causal() & prefix(2)),
    "documents": lambda b, h, t: causal() & documents(torch.arange(t) // 11),
    "documents per item": lambda b, h, t: causal() & documents(_packed(b, t)),
    "interleaved documents": lambda b, h, t: causal() & documents(torch.arange(t) // 4 % 3),
    "padding right": lambda b, h, t: causal() & padding([max(0, t - 3 * i) for i in range(b)]),
    "padding left": lambda b, h, t: (
        causal()
        & padding(torch.arange(t) >= torch.arange(b).unsqueeze(1) * 3 if t else torch.ones(b, 0, dtype=torch.bool))
    ),
    "padding with holes": lambda b, h, t: causal() & padding(_random(2, b, t) < 0.8),
    "chunks": lambda b, h, t: chunks(13),
    "dilated": lambda b, h, t: causal() & dilated(3),
    "where": lambda b, h, t: where(lambda i, j: (i * 7 + j * 3) % 5 < 3),
    "dense": lambda b, h, t: dense(_random(3, t, t) < 0.4),
    "dense per item and head": lambda b, h, t: dense(_random(4, b, h, t, t) < 0.3),
    "per head": lambda b, h, t: per_head([causal(), window(4), full(), causal()][:h]),
    "per head and item": lambda b, h, t: (
        per_head([causal(), window(4), causal() & window(2), causal()][:h])
        & padding([max(0, t - 2 * i) for i in range(b)])
    ),
    "only the future": lambda b, h, t: ~causal(),
    "nobody": lambda b, h, t: prefix(0),
}
