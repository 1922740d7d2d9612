"""`masks_of(model, ...)`: the mask that each attention layer of a model applies to given inputs.

>>> import torch
>>> from transformers import Gemma3TextConfig, Gemma3TextModel
>>> config = Gemma3TextConfig(vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, head_dim=8,
...                           num_attention_heads=2, num_key_value_heads=1, sliding_window=3,
...                           layer_types=["sliding_attention", "full_attention"])
>>> found = masks_of(Gemma3TextModel(config), input_ids=torch.tensor([[1, 2, 3, 4, 5]]))
>>> for name, mask in found.items():
...     print(name, mask)
layers.0.self_attn causal() & window(3)
layers.1.self_attn causal()
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rearview.errors import RearviewError, Unsupported
from rearview.integrations.transformers.call import call_of
from rearview.integrations.transformers.registered_functions import rearview_attention
from rearview.integrations.transformers.registration import NAME, register
from rearview.integrations.transformers.watcher import is_watched
from rearview.masks import Mask


def masks_of(model: nn.Module, **inputs: object) -> dict[str, Mask]:
    """Run `model(**inputs)` once without gradients, and return the mask of each attention by the name of its module.

    For a module that attends several times, the mask is the last one. The attention implementation of the model is the
    same afterwards.

    >>> from transformers import GPT2Config, GPT2Model
    >>> model = GPT2Model(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=2))
    >>> masks_of(model, input_ids=torch.tensor([[1, 2, 3]]), attention_mask=torch.tensor([[0, 1, 1]]))
    {'h.0.attn': causal() & padding([[False, True, True]])}
    """
    register()
    from transformers import AttentionInterface

    if is_watched(model):
        raise RearviewError("masks_of: this model is being watched. Call masks_of before or after `with observe(...)`.")
    names = {module: name for name, module in model.named_modules()}
    found: dict[str, Mask] = {}

    def record(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        # Another model may use the same implementation at the same time.
        if module in names:
            found[names[module]] = call_of(module, *tensors, **options).mask
        return rearview_attention(module, *tensors, **options)

    # Every part is switched separately: the whole may not be a transformers model, and some releases leave out parts
    # that have a configuration of their own (the encoder and the decoder of T5 until 5.19).
    parts: list[Any] = [part for part in model.modules() if _chooses_attention(part)]
    before = [(part.config, part.config._attn_implementation) for part in parts]
    try:
        for part in parts:
            if part.config._attn_implementation != NAME:
                part.set_attn_implementation(NAME)
        AttentionInterface.register(NAME, record)
        with torch.no_grad():
            model(**inputs)
    finally:
        register()
        for config, implementation in before:
            config._attn_implementation = implementation
    if not found:
        raise Unsupported(
            f"masks_of({type(model).__name__})",
            ["none of its layers uses the attention interface of transformers"],
            advice="docs/transformers.md lists the models that do not use it.",
        )
    return found


def _chooses_attention(part: nn.Module) -> bool:
    return hasattr(part, "set_attn_implementation") and hasattr(part.config, "_attn_implementation")
