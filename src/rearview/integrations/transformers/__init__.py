"""Hugging Face transformers on `rearview.attend`: the mask of every model, translated exactly.

    >>> import torch
    >>> from transformers import AutoModelForCausalLM, MistralConfig
    >>> from rearview.integrations.transformers import register
    >>> config = MistralConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    ...                        num_attention_heads=2, num_key_value_heads=1, sliding_window=4)
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation=register())
    >>> model(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits.shape
    torch.Size([1, 6, 32])

How a mask travels: transformers calls `masks.rearview_mask` with a function (batch, head, query, key) -> bool, which
`structure` reads as a mask of the algebra; it goes through the model as a `TravellingMask`, a tensor without memory
that turns dense when a model computes with it; `call.Call` takes it out again beside everything else that an attention
function of transformers receives.
"""

from rearview.integrations.transformers.call import Call
from rearview.integrations.transformers.reading import masks_of
from rearview.integrations.transformers.registering import NAME, register

__all__ = ["NAME", "register", "masks_of", "Call"]
