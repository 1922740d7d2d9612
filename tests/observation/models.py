"""Small models whose attention is far from uniform."""

from typing import Any

import torch
from torch import nn

from rearview.models import BERT, GPT, T5, BERTConfig, GPTConfig, T5Config

SMALL: dict[str, Any] = {"vocab_size": 64, "layers": 2, "heads": 4, "width": 32}


def with_large_weights(model: nn.Module, seed: int = 0) -> Any:
    """The model with larger weights, so that heads differ from each other and from uniform attention."""
    torch.manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)
    return model.eval()


def gpt(**options) -> GPT:
    return with_large_weights(GPT(GPTConfig(**{**SMALL, "context": 64, **options})))


def bert() -> BERT:
    return with_large_weights(BERT(BERTConfig(**SMALL, context=64)))


def t5() -> T5:
    return with_large_weights(T5(T5Config(**SMALL, end_id=None)))


def tokens(length: int = 17, batch: int = 2, seed: int = 1) -> torch.Tensor:
    return torch.randint(2, 64, (batch, length), generator=torch.Generator().manual_seed(seed))


def theirs(kind: str, **options) -> Any:
    """A small model of transformers by its family, on SDPA."""
    import transformers as hf

    llama = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
    }
    gpt2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    ends = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    t5_sizes: dict[str, Any] = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 4}
    t5_sizes["decoder_start_token_id"] = 0
    bert_sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}
    made = {
        "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**gpt2, **ends, **options)),
        "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**llama, **options})),
        "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**llama, sliding_window=5, **options)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**llama, sliding_window=5, **options)),
        "gpt_oss": lambda: hf.GptOssForCausalLM(
            hf.GptOssConfig(**llama, sliding_window=5, num_local_experts=2, num_experts_per_tok=1, **options)
        ),
        "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=64, **bert_sizes, **options)),
        "t5": lambda: hf.T5ForConditionalGeneration(
            hf.T5Config(**t5_sizes, eos_token_id=None, pad_token_id=0, **options)
        ),
    }
    return with_large_weights(made[kind]())
