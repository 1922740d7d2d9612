"""The expected results of `observe`, computed from the whole matrix of weights."""

from typing import Any

import torch
from torch import Tensor

from rearview.attention.stats import FIRST
from rearview.observation import Observation
from rearview.observation.result.layer import Layer

TIGHT: dict[str, Any] = {"atol": 2e-5, "rtol": 1e-4}


def pooled(weights: Tensor, size: int) -> Tensor:
    """The sum over the keys of a bin, the mean over its queries that hear anything; at most `size` bins per side."""
    width = max(1, -(-max(weights.shape) // size))
    rows, cols = (-(-side // width) for side in weights.shape)
    found = torch.zeros(rows, cols)
    for r in range(rows):
        strip = weights[r * width : (r + 1) * width]
        heard = max(1, int((strip.sum(-1) > 0).sum()))
        for c in range(cols):
            found[r, c] = strip[:, c * width : (c + 1) * width].sum() / heard
    return found


def entropy(weights: Tensor) -> Tensor:
    return -(weights * weights.clamp(min=1e-38).log()).sum(-1)


def distance(weights: Tensor) -> Tensor:
    query, key = torch.arange(weights.shape[0]).unsqueeze(1), torch.arange(weights.shape[1])
    return (weights * (query - key)).sum(-1)


def uniform(visible: Tensor) -> Tensor:
    """Uniform weights over the keys that each query hears."""
    return visible / visible.sum(-1, keepdim=True).clamp(min=1)


def check(seen: Observation, layer: Layer, weights: Tensor, *, map_size: int, visible: Tensor | None = None) -> None:
    """`weights` [batch, heads, queries, keys] are those of the watched heads; `visible` [batch, queries, keys]."""
    batch, heads = weights.shape[:2]
    assert (layer.batch, len(layer.heads)) == (batch, heads)
    for item in range(batch):
        for row, head in enumerate(layer.heads):
            exact = weights[item, row].float()
            at: dict[str, Any] = {"item": item}
            torch.testing.assert_close(seen.tile(layer, head, **at), exact, **TIGHT)
            torch.testing.assert_close(seen.received(layer, head, **at), exact.sum(0), **TIGHT)
            torch.testing.assert_close(seen.entropy(layer, head, **at), entropy(exact), **TIGHT)
            torch.testing.assert_close(seen.distance(layer, head, **at), distance(exact), atol=2e-4, rtol=1e-4)
            torch.testing.assert_close(seen.map(layer, head, **at), pooled(exact, map_size), **TIGHT)
            # A map that is larger than the stored one comes from kept queries and keys.
            torch.testing.assert_close(seen.map(layer, head, 2 * map_size, **at), pooled(exact, 2 * map_size), **TIGHT)
            heard = max(1, int((exact.sum(-1) > 0).sum()))
            for n in FIRST:
                torch.testing.assert_close(seen.sinks(n, layer, head, **at), exact[:, :n].sum() / heard, **TIGHT)
            if visible is not None:
                expected = uniform(visible[item].float()).sum(0)
                against = torch.where(expected > 0, exact.sum(0) / expected.clamp(min=1e-9), torch.zeros(()))
                torch.testing.assert_close(seen.received(layer, head, **at, against="uniform"), against, **TIGHT)
                check_links_against_uniform(seen, layer, head, exact, visible[item], item)
            check_links(seen, layer, head, exact, item)


def check_links_against_uniform(
    seen: Observation, layer: Layer, head: int, exact: Tensor, visible: Tensor, item: int
) -> None:
    links = seen.links(layer, head, item=item, k=5, against="uniform")
    every = exact * visible.sum(-1, keepdim=True)
    strongest = every.flatten().sort(descending=True).values[: len(links)]
    torch.testing.assert_close(torch.tensor([link.times for link in links]), strongest, **TIGHT)
    for link in links:
        assert (link.layer, link.head) == (layer.index, head)
        torch.testing.assert_close(torch.tensor(link.times), every[link.query, link.key], **TIGHT)
        torch.testing.assert_close(torch.tensor(link.weight), exact[link.query, link.key], **TIGHT)


def check_links(seen: Observation, layer: Layer, head: int, exact: Tensor, item: int) -> None:
    links = seen.links(layer, head, item=item, k=5)
    strongest = exact.flatten().sort(descending=True).values[: len(links)]
    torch.testing.assert_close(torch.tensor([link.weight for link in links]), strongest, **TIGHT)
    for link in links:
        assert (link.layer, link.head) == (layer.index, head)
        torch.testing.assert_close(torch.tensor(link.weight), exact[link.query, link.key], **TIGHT)
