"""What differs from release to release of transformers: each is asked what it has, never for its number."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, masking_utils
from transformers.models.t5.modeling_t5 import T5Attention

from rearview.integrations.transformers.seams import asks

# Earlier releases compute the attention of T5 in the model, and ask nobody.
T5_ASKS = asks(T5Attention)
# And the implementation of ModernBERT cannot be changed there once it is made.
with warnings.catch_warnings(action="ignore"):
    MODERNBERT_SWITCHES = hf.ModernBertModel._can_set_attn_implementation()
_SAYS_POSITIONS = "cache_position" in inspect.signature(masking_utils.sdpa_mask).parameters


# Earlier releases put the images of a text into its mask by a function that cannot be read, and is evaluated.
IMAGES_HAVE_RANGES = hasattr(masking_utils, "blockwise_overlay")
# In some, `generate` hands the function that makes chunks an argument which that does not take: no attention helps.
_ASKED, _TAKEN = (
    "block_sequence_ids" in inspect.signature(function).parameters
    for function in (masking_utils.create_masks_for_generate, masking_utils.create_chunked_causal_mask)
)
CHUNKS_IN_A_STATIC_CACHE = _TAKEN or not _ASKED


def asks_for_masks(model: nn.Module) -> bool:
    """Some models made their masks themselves, as dense tensors, in earlier releases."""
    return hasattr(sys.modules[type(model).__module__], "create_causal_mask")


def at(q_length: int, q_offset: int = 0) -> dict[str, Any]:
    """Where the queries of a mask stand, in the words of this release."""
    if _SAYS_POSITIONS:
        return {"cache_position": torch.arange(q_offset, q_offset + q_length)}
    return {"q_length": q_length, "q_offset": q_offset}


def set_attention(model: nn.Module, implementation: str) -> None:
    """For all parts. `model.set_attn_implementation` alone forgets T5's encoder and decoder until 5.19."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.set_attn_implementation(implementation)
