"""Observations of hand-made heads that resemble those of real models, and their full weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rearview import causal
from rearview.attention.stats import statistics
from rearview.masks import Mask
from rearview.observation import Layer, Observation

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
    """Head 0 attends to the first key, head 1 to the previous position; the others are random."""
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
) -> Observation:
    made = []
    for n in range(layers):
        query, key = queries_and_keys(length, heads, seed + n)
        found = statistics(query, key, mask=mask, map_size=map_size)
        made.append(Layer(f"blocks.{n}.attention", "self", n, tuple(range(heads)), found))
    return Observation(made, labels=labels(length) if words else None, title=title)


def weights(length: int, heads: int, layer: int, mask: Mask = causal(), seed: int = 0) -> Tensor:
    """The full matrix of weights, [heads, length, length]."""
    query, key = (x[0].double() for x in queries_and_keys(length, heads, seed + layer))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    return scores.masked_fill(~mask.to_bool(length), -math.inf).softmax(-1)
