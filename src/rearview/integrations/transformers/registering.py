"""`register()`: make "rearview" a name that transformers knows.

>>> register()
'rearview'
"""

from __future__ import annotations

from rearview.integrations.transformers.release import check_release

NAME = "rearview"


def register() -> str:
    """After this, `attn_implementation="rearview"` runs a model on `rearview.attend`. Calling it again is harmless.

    Returns the name, so that `from_pretrained(..., attn_implementation=register())` is all there is to do; a model
    that is there already changes with `model.set_attn_implementation(register())`.

    >>> from transformers import AutoModelForCausalLM, GPT2Config
    >>> config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation=register())
    >>> model.config._attn_implementation
    'rearview'
    """
    check_release("register()")
    from transformers import AttentionInterface, AttentionMaskInterface

    from rearview.integrations.transformers.attention import rearview_attention
    from rearview.integrations.transformers.masks import rearview_mask

    # The mask first: a name that is known for attention alone gets no mask at all, and no word of it.
    AttentionMaskInterface.register(NAME, rearview_mask)
    AttentionInterface.register(NAME, rearview_attention)
    return NAME
