"""Heads that do what heads of real models do, made by hand; and their weights, whole."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rearview import causal
from rearview.attention.statistics import statistics
from rearview.masks import Mask
from rearview.observe import Layer, Seen

WORDS = [
    "The",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "the",
    "lazy",
    "dog",
    "while",
    "the",
    "others",
    "of",
    "the",
    "forest",
    "watch",
]


def queries_and_keys(length: int, heads: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Head 0 leans on the first key, head 1 on the position before, the others are arbitrary."""
    numbers = torch.Generator().manual_seed(seed)
    query, key = torch.randn(2, 1, heads, length, 16, generator=numbers)
    query[0, 0, :, 0], key[0, 0, :, 0], key[0, 0, 0, 0] = 4.0, 0.0, 6.0
    if heads > 1:
        at = torch.arange(length).unsqueeze(-1) * torch.tensor([1.0, 0.3, 0.09, 0.03, 0.01, 0.003, 0.001, 0.0])
        key[0, 1] = 3 * torch.cat([at.cos(), at.sin()], -1)
        query[0, 1] = torch.roll(key[0, 1], 1, 0)
    return query, key


def labels(length: int) -> list[str]:
    return ["<s>", *(f" {WORDS[n % len(WORDS)]}" for n in range(length - 1))]


def seen(
    length: int = 12,
    layers: int = 2,
    heads: int = 3,
    *,
    mask: Mask = causal(),
    map_size: int | None = 64,
    seed: int = 0,
    words: bool = True,
    title: str = "",
) -> Seen:
    made = []
    for n in range(layers):
        query, key = queries_and_keys(length, heads, seed + n)
        found = statistics(query, key, mask=mask, map_size=map_size)
        made.append(Layer(f"blocks.{n}.attention", "self", n, tuple(range(heads)), found))
    return Seen(made, labels=labels(length) if words else None, title=title)


def weights(length: int, heads: int, layer: int, mask: Mask = causal(), seed: int = 0) -> Tensor:
    """[heads, length, length], plainly."""
    query, key = (x[0].double() for x in queries_and_keys(length, heads, seed + layer))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~mask.to_bool(length), -math.inf).softmax(-1)
