"""BERT as Hugging Face's BertForMaskedLM.

>>> from rearview.models import BERTConfig
>>> config = BERTConfig(vocab_size=65, layers=2, hidden=64)
>>> from_json(to_json(config)) == config
True
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rearview.codec import brief
from rearview.errors import Unsupported
from rearview.models.bert import BERT, BERTConfig
from rearview.models.checkpoint.gpt import ACTIVATIONS
from rearview.models.checkpoint.names import StoredParameter, linear

Model, types = BERT, ("bert",)


def from_json(data: dict[str, Any], tensors: Collection[str] = ()) -> BERTConfig:
    reasons = []
    if data.get("position_embedding_type", "absolute") != "absolute":
        reasons.append(f"its positions are {brief(data['position_embedding_type'])}, not absolute")
    if data.get("is_decoder"):
        reasons.append("it is a decoder")
    if not data.get("tie_word_embeddings", True):
        reasons.append("its head is not tied to the embedding")
    activation = data.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        reasons.append(f"its activation is {brief(activation)}")
    if reasons:
        raise Unsupported("This BERT cannot be loaded", reasons)
    return BERTConfig(
        vocab_size=data.get("vocab_size", 30522),
        context=data.get("max_position_embeddings", 512),
        layers=data.get("num_hidden_layers", 12),
        heads=data.get("num_attention_heads", 12),
        width=data.get("hidden_size", 768),
        hidden=data.get("intermediate_size", 3072),
        segments=data.get("type_vocab_size", 2),
        activation=ACTIVATIONS[activation],
        norm_eps=data.get("layer_norm_eps", 1e-12),
        dropout=data.get("hidden_dropout_prob", 0.1),
    )


def to_json(config: BERTConfig) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.context,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "hidden_size": config.width,
        # transformers has no default that depends on the width.
        "intermediate_size": config.hidden or 4 * config.width,
        "type_vocab_size": config.segments,
        "hidden_act": {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation),
        "layer_norm_eps": config.norm_eps,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.dropout,
        "pad_token_id": None,
    }


def names(config: BERTConfig) -> dict[str, StoredParameter]:
    embeddings, head = "bert.embeddings", "cls.predictions"
    found = {
        "tokens.weight": StoredParameter((f"{embeddings}.word_embeddings.weight",)),
        "positions.weight": StoredParameter((f"{embeddings}.position_embeddings.weight",)),
        "segments.weight": StoredParameter((f"{embeddings}.token_type_embeddings.weight",)),
        **linear("norm", f"{embeddings}.LayerNorm"),
        **linear("last", f"{head}.transform.dense"),
        **linear("last_norm", f"{head}.transform.LayerNorm"),
        "head.bias": StoredParameter((f"{head}.bias",)),
    }
    for n in range(config.layers):
        ours, theirs = f"blocks.{n}", f"bert.encoder.layer.{n}"
        parts = (f"{theirs}.attention.self.{part}" for part in ("query", "key", "value"))
        found |= linear(f"{ours}.attention.qkv", *parts)
        found |= linear(f"{ours}.attention.out", f"{theirs}.attention.output.dense")
        found |= linear(f"{ours}.attention_norm", f"{theirs}.attention.output.LayerNorm")
        found |= linear(f"{ours}.forward_part.wide", f"{theirs}.intermediate.dense")
        found |= linear(f"{ours}.forward_part.out", f"{theirs}.output.dense")
        found |= linear(f"{ours}.forward_norm", f"{theirs}.output.LayerNorm")
    return found
