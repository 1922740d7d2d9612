"""The attention of transformers models whose masks are edited (`rearview.attention.mask_edits`).

    >>> import torch
    >>> from transformers import GPT2Config, GPT2LMHeadModel
    >>> from rearview.attention.mask_edits import MaskEdit, editing
    >>> from rearview.masks import window
    >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2)).eval()
    >>> layer, tokens = model.transformer.h[0].attn, torch.tensor([[1, 2, 3]])
    >>> with torch.no_grad(), editing([layer], MaskEdit(window(1))), with_edited_functions([layer]):
    ...     own = model(tokens).logits
    >>> torch.allclose(own[:, 2], model(torch.tensor([[5, 6, 3]])).logits[:, 2])
    False

A layer with edits is computed by `attend`, with the model's own mask and the edits; other layers keep their function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from rearview.attention.mask_edits import edits_of
from rearview.integrations.transformers.edited_attention import edited_attention
from rearview.integrations.transformers.function_slots import Function, entries_of, replaced, slots_of
from rearview.integrations.transformers.watcher import computes_edits, mask_interface, positional_options, remembering


@contextmanager
def with_edited_functions(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Compute the attention of these modules with the edits of their masks."""
    kinds = {type(module) for module in modules}
    with ExitStack() as stack:
        stack.enter_context(replaced((slot for kind in kinds for slot in slots_of(kind)), _attention))
        stack.enter_context(replaced(entries_of(mask_interface()), remembering))
        yield


def _attention(original: Function, name: str) -> Function:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *args: Any, **options: Any
    ) -> Any:
        if not edits_of(module) or computes_edits(original):
            return original(module, query, key, value, attention_mask, *args, **options)
        options = positional_options(original, args) | options
        return edited_attention(module, name, query, key, value, attention_mask, options)

    return attention
