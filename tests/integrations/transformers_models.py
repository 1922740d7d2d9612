"""Tiny random models of transformers, one of each kind of attention, and how each is run.

Windows and chunks are shorter than the 24 tokens that the models read, so that every mask has an effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor

TIME, WINDOW, VOCAB = 24, 6, 61
NARROW = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
GROUPED = NARROW | {"num_key_value_heads": 2}
TOKENS = {"vocab_size": VOCAB, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
TYPES = ["sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4}
SIDES = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48,
}  # fmt: skip

# Decoders: the configuration of each, by the name of its class without "Config".
DECODERS: dict[str, dict[str, Any]] = {
    "GPT2": GPT2,
    "GPTNeoX": NARROW,
    "Llama": GROUPED,
    "Mistral": GROUPED | {"sliding_window": WINDOW},
    "Mixtral": GROUPED | EXPERTS | {"sliding_window": WINDOW},
    "Qwen2": GROUPED | {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "Qwen3": GROUPED | {"head_dim": 8},
    "Gemma": GROUPED | {"head_dim": 8},
    # Softcap, which SDPA refuses, and windows in every other layer.
    "Gemma2": GROUPED | {"head_dim": 8, "sliding_window": WINDOW, "attn_logit_softcapping": 3.0},
    "Gemma3Text": GROUPED | {"head_dim": 8, "sliding_window": WINDOW, "layer_types": TYPES},
    "Phi": NARROW,
    "Phi3": GROUPED | {"sliding_window": WINDOW},
    "Olmo2": GROUPED,
    "Cohere2": GROUPED | {"sliding_window": WINDOW, "layer_types": TYPES},
    "Starcoder2": GROUPED | {"sliding_window": WINDOW},
    # Chunks that begin after the padding.
    "Llama4Text": GROUPED
    | EXPERTS
    | {"head_dim": 8, "intermediate_size_mlp": 48, "attention_chunk_size": WINDOW, "num_experts_per_tok": 1}
    | {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0]},
    # A learned sink for each head.
    "GptOss": GROUPED | EXPERTS | {"head_dim": 8, "sliding_window": WINDOW, "layer_types": TYPES},
    # Keys that are wider than the values.
    "DeepseekV3": NARROW
    | {"num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8}
    | {"v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
    | {"moe_intermediate_size": 16, "first_k_dense_replace": 1},
    "OPT": NARROW | {"ffn_dim": 48, "word_embed_proj_dim": 32},
}

# Models that hear both ways, or read one sequence and write another: (class, configuration).
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "Bert": ("BertModel", NARROW),
    "Roberta": ("RobertaModel", NARROW),
    "DistilBert": ("DistilBertModel", {"dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}),
    "ModernBert": ("ModernBertModel", NARROW | {"local_attention": WINDOW, "global_attn_every_n_layers": 2}),
    "ViT": ("ViTModel", NARROW | {"image_size": 16, "patch_size": 4}),
    "Bart": ("BartForConditionalGeneration", SIDES),
    "T5": ("T5ForConditionalGeneration", {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}),
    "Whisper": (
        "WhisperForConditionalGeneration",
        SIDES | {"num_mel_bins": 8, "max_source_positions": 12, "decoder_start_token_id": 1},
    ),
}


def decoder(name: str) -> Any:
    """The model, with the attention that transformers chooses for it."""
    return _initialized(hf.AutoModelForCausalLM.from_config, name, DECODERS[name])


def other(name: str) -> Any:
    kind, sizes = OTHERS[name]
    return _initialized(getattr(hf, kind), name, sizes)


def _initialized(kind: Callable[[Any], Any], name: str, sizes: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    model = kind(getattr(hf, f"{name}Config")(**(TOKENS | sizes))).eval()
    # Random weights of the usual size make logits that hardly differ from token to token.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
            elif not bool(parameter.any()):
                parameter.normal_()
    return model


def tokens(batch: int = 2, length: int = TIME) -> Tensor:
    return torch.randint(3, VOCAB, (batch, length), generator=torch.Generator().manual_seed(1))


def real(side: str, length: int = TIME) -> Tensor:
    """The 2-D mask of a batch of two, whose second item has seven tokens of padding."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, slice(7) if side == "left" else slice(-7, None)] = 0
    return mask


def inputs_of_other(name: str) -> dict[str, Tensor]:
    if name == "ViT":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(2))}
    if name == "Whisper":
        audio = torch.randn(2, 8, 24, generator=torch.Generator().manual_seed(2))
        return {"input_features": audio, "decoder_input_ids": tokens(length=9)}
    given = {"input_ids": tokens(), "attention_mask": real("right")}
    return given | {"decoder_input_ids": tokens(length=9)} if name in ("Bart", "T5") else given
