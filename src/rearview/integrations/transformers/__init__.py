"""Hugging Face transformers on `rearview.attend`: the mask of every model, translated exactly.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM, MistralConfig
    >>> from rearview.integrations.transformers import register
    >>> config = MistralConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    ...                        num_attention_heads=2, num_key_value_heads=1, sliding_window=4)
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation=register())
    >>> model(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits.shape
    torch.Size([1, 6, 32])

`observe` watches such models through `watcher`. README.md describes the path of a mask through a model.
"""

from rearview.integrations.transformers.call import call_of
from rearview.integrations.transformers.mask_inspection import masks_of
from rearview.integrations.transformers.paged_requests import continuous_batching
from rearview.integrations.transformers.registration import NAME, register

__all__ = ["NAME", "register", "masks_of", "call_of", "continuous_batching"]
