"""Traces for the tests of every front end: small ones that differ in what can go wrong."""

import torch

from rearview import MaskedSelfAttention, Trace, alibi, causal, explain, full, per_head, window
from rearview.explanation.examples import EXAMPLES

NASTY = ["a_b", " [x]", "100 %", "\\end{x}", "<&#${}~^", "--`'\"|*\n"]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def restaurant() -> Trace:
    return EXAMPLES["restaurant"].trace()


def a_layer() -> Trace:
    """Four heads over two key heads, biases, ALiBi, positions, an output projection; labels that need escaping."""
    torch.manual_seed(1)
    layer = MaskedSelfAttention(8, 4, num_kv_heads=2, mask=causal() & window(3), score_bias=alibi(4))
    return explain(layer, numbers(6, 8), positions="sinusoidal", labels=NASTY, title="A layer & 100 % of {it}")


def over_a_cache() -> Trace:
    """Two queries over four keys, with rotary positions; words that are two cells wide."""
    return explain(
        query=numbers(2, 4, seed=2),
        key=numbers(4, 4, seed=3),
        value=numbers(4, 3, seed=4),
        positions="rotary",
        labels=["寿司", "吧"],
        key_labels=["我", "喜欢", "寿司", "吧"],
        scale=0.25,
    )


def heads_of_their_own() -> Trace:
    """A mask per head; in the first, the last row hears nothing."""
    mask = per_head([~causal(), full()])
    q, k, v = (numbers(3, 4, seed=seed) for seed in (5, 6, 7))
    return explain(query=q, key=k, value=v, num_heads=2, mask=mask, w_o=numbers(4, 2, seed=8), labels="I love sushi")


def with_sinks() -> Trace:
    """A learned sink per head; the first row of the second head hears nothing but it."""
    q, k, v = (numbers(2, 3, 4, seed=seed) for seed in (9, 10, 11))
    mask = per_head([causal(), causal() & ~window(1)])
    return explain(query=q, key=k, value=v, mask=mask, sinks=[0.5, -1.0], labels="I love sushi")


def to_the_sink(trace: Trace, *, masked: bool = True) -> torch.Tensor:
    """The weight of the learned sink, [heads, rows]; 0 where there is none."""
    scores = torch.stack([trace["masked"].of_head(head, masked=masked) for head in range(trace.heads)]).exp()
    if "sinks" not in trace:
        return torch.zeros(scores.shape[:2], dtype=torch.float64)
    sink = trace["sinks"].matrix.flatten(1).exp()
    return sink / (scores.sum(-1) + sink)


TRACES = {made.__name__: made for made in (restaurant, a_layer, over_a_cache, heads_of_their_own, with_sinks)}
HEADS = [(name, head) for name, made in TRACES.items() for head in range(made().heads)]
