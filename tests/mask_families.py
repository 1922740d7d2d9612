"""Every mask family at a size, for the tests that must hold for all of them."""

from collections.abc import Callable

import torch

from rearview import (
    Mask,
    along,
    block_diffusion,
    causal,
    chunks,
    dense,
    dilated,
    documents,
    full,
    grid_window,
    padding,
    per_head,
    prefix,
    ranges,
    shared_prefix,
    tree,
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


def _edges(seed: int, length: int, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ranges in any order, some of them overlapping and some empty."""
    starts, ends = ((_random(seed + n, *shape) * (length + 1)).long() for n in range(2))
    return starts, ends


def _parents(seed: int, *shape: int) -> torch.Tensor:
    """Trees whose nodes mostly follow their parents, and sometimes branch off anywhere or are roots."""
    node = torch.arange(shape[-1])
    anywhere = (_random(seed, *shape) * (node + 1)).long() - 1
    return torch.where(_random(seed + 1, *shape) < 0.25, anywhere, node - 1)


def _images(length: int) -> torch.Tensor:
    """Every third stretch of 8 positions is an image, and each token of the text has an id of its own."""
    position = torch.arange(length)
    return torch.where(position // 8 % 3 == 1, position // 8, -1 - position)


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
    "dense with few ranges": lambda b, h, t: dense((causal() & (window(9) | prefix(2))).to_bool(t)),
    "ranges": lambda b, h, t: ranges(*_edges(5, t, t, 3)),
    "ranges per item and head": lambda b, h, t: ranges(*_edges(7, t, b, h, t, 2)),
    "tree": lambda b, h, t: tree(_parents(9, t)),
    "tree per item, a window along it": lambda b, h, t: along(tree(_parents(11, b, t)), window(5) | prefix(1)),
    "shared prefix": lambda b, h, t: shared_prefix(t - 2 * (t // 3), [t // 3, t // 3]),
    "blocks of documents": lambda b, h, t: documents(_packed(b, t)) & (causal() | chunks(5, within=_packed(b, t))),
    "documents token by token": lambda b, h, t: causal() & documents(torch.arange(t) % 2),
    "images in text": lambda b, h, t: (causal() & window(9)) | documents(_images(t)),
    "images in text, cut by a window": lambda b, h, t: (causal() | documents(_images(t))) & window(5, ahead=8),
    "grid window": lambda b, h, t: grid_window([-(-t // 8), 8], 3),
    "grid window inside": lambda b, h, t: grid_window([-(-t // 12), 3, 4], [3, 2, 3], inside=True),
    "block diffusion": lambda b, h, t: block_diffusion(-(-t // 2), 4),
    "per head": lambda b, h, t: per_head([causal(), window(4), full(), causal()][:h]),
    "per head and item": lambda b, h, t: (
        per_head([causal(), window(4), causal() & window(2), causal()][:h])
        & padding([max(0, t - 2 * i) for i in range(b)])
    ),
    "only the future": lambda b, h, t: ~causal(),
    "nobody": lambda b, h, t: prefix(0),
}
