"""T5 as Hugging Face's T5ForConditionalGeneration, v1.0 and v1.1.

>>> from rearview.models import T5Config
>>> from_json(to_json(T5Config(vocab_size=65, layers=2))).layers
2
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rearview.codec import brief
from rearview.errors import Unsupported
from rearview.models.checkpoint.gpt import ACTIVATIONS
from rearview.models.checkpoint.names import StoredParameter, linear
from rearview.models.t5 import T5, T5Config

Model, types = T5, ("t5",)
HEAD = "lm_head.weight"


def from_json(data: dict[str, Any], tensors: Collection[str] = ()) -> T5Config:
    projection = data.get("feed_forward_proj", "relu")
    if not isinstance(projection, str):
        raise Unsupported("This T5 cannot be loaded", [f"its feed_forward_proj is {brief(projection)}"])
    gated, _, word = projection.rpartition("-")
    # In T5 v1.1, "gated-gelu" means the tanh approximation.
    activation = "gelu_new" if projection == "gated-gelu" else word
    if activation not in ACTIVATIONS or gated not in ("", "gated"):
        raise Unsupported("This T5 cannot be loaded", [f"its feed_forward_proj is {projection}"])
    is_tied = data.get("tie_word_embeddings", True)
    return T5Config(
        vocab_size=data.get("vocab_size", 32128),
        layers=data.get("num_layers", 6),
        decoder_layers=data.get("num_decoder_layers"),
        heads=data.get("num_heads", 8),
        width=data.get("d_model", 512),
        head_dim=data.get("d_kv", 64),
        hidden=data.get("d_ff", 2048),
        gated=gated == "gated",
        activation=ACTIVATIONS[activation],
        # Recent configs claim that every T5 is tied, so the tensors of the file decide.
        tied=HEAD not in tensors if tensors else is_tied,
        scaled=data.get("scale_decoder_outputs", is_tied),
        buckets=data.get("relative_attention_num_buckets", 32),
        furthest=data.get("relative_attention_max_distance", 128),
        norm_eps=data.get("layer_norm_epsilon", 1e-6),
        dropout=data.get("dropout_rate", 0.1),
        start_id=data.get("decoder_start_token_id") or 0,
        end_id=data.get("eos_token_id", 1),
    )


def to_json(config: T5Config) -> dict[str, Any]:
    word = {"gelu_tanh": "gelu" if config.gated else "gelu_new"}.get(config.activation, config.activation)
    if config.gated and config.activation == "gelu":
        raise Unsupported(
            "This T5 cannot be saved", ["its gated GELU is exact, and the format only has the tanh approximation"]
        )
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "is_encoder_decoder": True,
        "vocab_size": config.vocab_size,
        "num_layers": config.layers,
        "num_decoder_layers": config.decoder_layers or config.layers,
        "num_heads": config.heads,
        "d_model": config.width,
        "d_kv": config.head_dim or config.width // config.heads,
        "d_ff": config.hidden or 4 * config.width,
        "feed_forward_proj": f"gated-{word}" if config.gated else word,
        "tie_word_embeddings": config.tied,
        "scale_decoder_outputs": config.scaled,
        "relative_attention_num_buckets": config.buckets,
        "relative_attention_max_distance": config.furthest,
        "layer_norm_epsilon": config.norm_eps,
        "dropout_rate": config.dropout,
        "decoder_start_token_id": config.start_id,
        "pad_token_id": config.start_id,
        "eos_token_id": config.end_id,
    }


def names(config: T5Config) -> dict[str, StoredParameter]:
    found = {"tokens.weight": StoredParameter(("shared.weight",))}
    if not config.tied:
        found["head.weight"] = StoredParameter((HEAD,))
    for stack, layers in (("encoder", config.layers), ("decoder", config.decoder_layers or config.layers)):
        table = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found[f"{stack}.relative.table.weight"] = StoredParameter((table,))
        found |= linear(f"{stack}.norm", f"{stack}.final_layer_norm", bias=False)
        for n in range(layers):
            found |= _block(f"{stack}.blocks.{n}", f"{stack}.block.{n}.layer", config, cross=stack == "decoder")
    return found


def _block(ours: str, theirs: str, config: T5Config, *, cross: bool) -> dict[str, StoredParameter]:
    attention = f"{theirs}.0.SelfAttention"
    found = linear(f"{ours}.attention_norm", f"{theirs}.0.layer_norm", bias=False)
    found |= linear(f"{ours}.attention.qkv", *(f"{attention}.{part}" for part in "qkv"), bias=False)
    found |= linear(f"{ours}.attention.out", f"{attention}.o", bias=False)
    if cross:
        attention = f"{theirs}.1.EncDecAttention"
        found |= linear(f"{ours}.cross_norm", f"{theirs}.1.layer_norm", bias=False)
        found |= linear(f"{ours}.cross.query", f"{attention}.q", bias=False)
        found |= linear(f"{ours}.cross.key_value", f"{attention}.k", f"{attention}.v", bias=False)
        found |= linear(f"{ours}.cross.out", f"{attention}.o", bias=False)
    last = f"{theirs}.{2 if cross else 1}"
    wide = ("wi_0", "wi_1") if config.gated else ("wi",)
    found |= linear(f"{ours}.forward_norm", f"{last}.layer_norm", bias=False)
    found |= linear(f"{ours}.forward_part.wide", *(f"{last}.DenseReluDense.{part}" for part in wide), bias=False)
    found |= linear(f"{ours}.forward_part.out", f"{last}.DenseReluDense.wo", bias=False)
    return found
