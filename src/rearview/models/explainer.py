"""explain_model(): the Trace of one attention layer of a model, for real tokens.

>>> import torch
>>> from rearview.models import GPT, GPTConfig
>>> model = GPT(GPTConfig(vocab_size=65, context=8, layers=2, heads=2, width=16))
>>> trace = explain_model(model, torch.tensor([[1, 2, 3]]), layer=1, labels=["To", "be", "or"])
>>> trace.heads, trace["weights"].matrix.shape
(2, torch.Size([2, 3, 3]))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rearview.attention.positions import Rotation
from rearview.errors import BadArgument, Unsupported
from rearview.explanation import Trace, explain
from rearview.masks import Mask, full
from rearview.models.attention import SelfAttention
from rearview.models.bert import BERT
from rearview.models.gpt import GPT
from rearview.models.t5 import T5


def explain_model(
    model: GPT | BERT,
    tokens: Tensor,
    *,
    layer: int = 0,
    labels: Sequence[str] | None = None,
    mask: Mask | None = None,
    title: str = "",
) -> Trace:
    """The `Trace` of one layer's attention over `tokens` [1, time]: every step, all heads, with and without the mask.

    Q, K and V are those that the model computes, positions included. A negative `layer` counts from the end. `mask`
    replaces the layer's own mask.
    """
    if isinstance(model, T5):
        reason = "it adds a relative position bias to its scores, which a Trace has no step for"
        raise Unsupported("T5's attention cannot be explained step by step", [reason])
    if tokens.ndim != 2 or tokens.shape[0] != 1:
        raise BadArgument("tokens", expected="shape [1, time], one sequence", got=list(tokens.shape))
    count = len(model.blocks)
    if isinstance(layer, bool) or not isinstance(layer, int) or not -count <= layer < count:
        raise BadArgument("layer", expected=f"a layer from 0 to {count - 1}", got=repr(layer))
    layer %= count
    query, key, value = queries_keys_values(model, tokens, layer)
    own = model.config.masks[layer] if isinstance(model, GPT) else full()
    attention = list(model.blocks)[layer].attention
    return explain(
        query=query,
        key=key,
        value=value,
        mask=own if mask is None else mask,
        labels=labels,
        scale=attention.scale,
        title=title or f"Layer {layer} of a {type(model).__name__}",
    )


@torch.no_grad()
def queries_keys_values(model: GPT | BERT, tokens: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a layer for one sequence, each [heads, time, head_dim]; shared key heads are repeated."""
    attention = list(model.blocks)[layer].attention
    found: list[tuple[Tensor, Tensor, Tensor]] = []

    def record(module: SelfAttention, inputs: tuple[Tensor, ...], options: dict[str, Rotation | None]) -> None:
        found.append(module.project(inputs[0], options.get("rotation")))

    was_training = model.training
    handle = attention.register_forward_pre_hook(record, with_kwargs=True)
    try:
        model.eval()(tokens)
    finally:
        handle.remove()
        model.train(was_training)
    query, key, value = (tensor[0] for tensor in found[0])
    group = attention.heads // attention.kv_heads
    return query, key.repeat_interleave(group, dim=0), value.repeat_interleave(group, dim=0)
