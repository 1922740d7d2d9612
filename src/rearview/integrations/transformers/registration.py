"""`register()`: make "rearview" an attention implementation of transformers.

>>> register()
'rearview'
"""

from __future__ import annotations

from rearview.errors import MissingExtra, Unsupported

NAME = "rearview"
"""The name for `attn_implementation`, once `register()` was called."""
# From this release on, masks are made from functions that can be read, and all models request them in the same way.
OLDEST = 5


def check_release(needed_for: str) -> None:
    """Raise `MissingExtra` or `Unsupported` where transformers is not installed or is too old."""
    try:
        from transformers import __version__
    except ImportError as error:
        raise MissingExtra("transformers", extra="transformers", needed_for=needed_for) from error
    if int(__version__.partition(".")[0]) < OLDEST:
        raise Unsupported(
            f"{needed_for} with transformers {__version__}",
            [f"its models make and pass masks in other ways than transformers {OLDEST}"],
            advice=f"Install a newer release: pip install 'transformers>={OLDEST}'",
        )


def register() -> str:
    """Make `attn_implementation="rearview"` run a model on `rearview.attend`, and return the name.

    Call it before the name is used: `from_pretrained(..., attn_implementation=register())`. To switch a model that is
    already loaded, use `model.set_attn_implementation(register())`. Calling `register` again is harmless.

    >>> from transformers import AutoModelForCausalLM, GPT2Config
    >>> config = GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)
    >>> model = AutoModelForCausalLM.from_config(config, attn_implementation=register())
    >>> model.config._attn_implementation
    'rearview'
    """
    check_release("register()")
    from transformers import AttentionInterface, AttentionMaskInterface

    from rearview.integrations.transformers.registered_functions import rearview_attention, rearview_mask

    # The mask function first: a name that only the attention interface knows silently gets no mask.
    AttentionMaskInterface.register(NAME, rearview_mask)
    AttentionInterface.register(NAME, rearview_attention)
    return NAME
