"""GPT as Hugging Face's GPT-2, or in a format of its own if it has options that GPT-2 does not have.

>>> from rearview.models import GPTConfig
>>> config = GPTConfig(vocab_size=65, layers=2)
>>> to_json(config)["model_type"], from_json(to_json(config)) == config
('gpt2', True)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, fields
from typing import Any

from rearview.codec import brief
from rearview.errors import BadArgument, Unsupported
from rearview.masks import Mask, causal
from rearview.masks.parser import parse
from rearview.models.checkpoint.names import StoredParameter, linear
from rearview.models.gpt import GPT, GPTConfig

Model, types = GPT, ("gpt2", "rearview_gpt")
OWN_FORMAT = "rearview_gpt"

# Activations: the names of Hugging Face and ours.
ACTIVATIONS = {
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Options of GPT-2 that this model does not support.
UNSUPPORTED = {"scale_attn_weights": False, "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True}


def from_json(data: dict[str, Any], tensors: Collection[str] = ()) -> GPTConfig:
    if data.get("model_type") == OWN_FORMAT:
        return _from_own_format(data)
    reasons = [f"{name} is {value}" for name, value in UNSUPPORTED.items() if data.get(name) is value]
    activation = data.get("activation_function", "gelu_new")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        reasons.append(f"its activation is {brief(activation)}")
    if reasons:
        raise Unsupported("This GPT-2 cannot be loaded", reasons)
    return GPTConfig(
        vocab_size=data.get("vocab_size", 50257),
        context=data.get("n_positions", 1024),
        layers=data.get("n_layer", 12),
        heads=data.get("n_head", 12),
        width=data.get("n_embd", 768),
        hidden=data.get("n_inner"),
        activation=ACTIVATIONS[activation],
        norm_eps=data.get("layer_norm_epsilon", 1e-5),
        # GPT-2 has three dropout probabilities; published checkpoints have them equal.
        dropout=data.get("resid_pdrop", 0.1),
        tied=data.get("tie_word_embeddings", True),
    )


def to_json(config: GPTConfig) -> dict[str, Any]:
    if not _is_gpt2(config):
        data = asdict(config)
        mask = config.mask
        data["mask"] = [_mask_expression(one) for one in mask] if isinstance(mask, tuple) else _mask_expression(mask)
        return {"model_type": OWN_FORMAT, "architectures": ["GPT"], **data}
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": config.vocab_size,
        "n_positions": config.context,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_embd": config.width,
        "n_inner": config.hidden,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(config.activation, config.activation),
        "layer_norm_epsilon": config.norm_eps,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
        "tie_word_embeddings": config.tied,
        # The default ids of GPT-2 exceed a smaller vocabulary.
        "bos_token_id": None,
        "eos_token_id": None,
    }


def names(config: GPTConfig) -> dict[str, StoredParameter]:
    found = {
        "tokens.weight": StoredParameter(("transformer.wte.weight",)),
        **linear("norm", "transformer.ln_f"),
    }
    if config.positions == "learned":
        found["positions.weight"] = StoredParameter(("transformer.wpe.weight",))
    if not config.tied:
        found["head.weight"] = StoredParameter(("lm_head.weight",))
    for n in range(config.layers):
        ours, theirs = f"blocks.{n}", f"transformer.h.{n}"
        found |= linear(f"{ours}.attention_norm", f"{theirs}.ln_1")
        found |= linear(f"{ours}.attention.qkv", f"{theirs}.attn.c_attn", bias=config.bias, transposed=True)
        found |= linear(f"{ours}.attention.out", f"{theirs}.attn.c_proj", bias=config.bias, transposed=True)
        found |= linear(f"{ours}.forward_norm", f"{theirs}.ln_2")
        found |= linear(f"{ours}.forward_part.wide", f"{theirs}.mlp.c_fc", bias=config.bias, transposed=True)
        found |= linear(f"{ours}.forward_part.out", f"{theirs}.mlp.c_proj", bias=config.bias, transposed=True)
    return found


def _is_gpt2(config: GPTConfig) -> bool:
    plain = config.kv_heads in (None, config.heads) and config.positions == "learned" and config.bias
    return plain and all(mask.is_causal for mask in config.masks)


def _from_own_format(data: dict[str, Any]) -> GPTConfig:
    known = {field.name for field in fields(GPTConfig)}
    values = {name: value for name, value in data.items() if name in known}
    if "vocab_size" not in values:
        raise BadArgument("vocab_size", expected="an integer of at least 1", got="nothing")
    mask = values.get("mask", "causal()")
    values["mask"] = tuple(map(parse, mask)) if isinstance(mask, list) else parse(mask)
    return GPTConfig(**values)


def _mask_expression(mask: Mask) -> str:
    """The expression of a mask. A mask that contains data, such as document ids, has none and belongs to a call."""
    text = repr(mask)
    try:
        parse(text)
    except ValueError as error:
        reasons = [f"{text} cannot be written as an expression: {error}"]
        raise Unsupported("This model cannot be saved", reasons, advice=f"Use masks such as {causal()!r}.") from error
    return text
