"""Differences between releases of transformers. Tests check for features, not for version numbers."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, masking_utils
from transformers.models.gemma3 import modeling_gemma3
from transformers.models.t5.modeling_t5 import T5Attention

from rearview.integrations.transformers.function_slots import uses_interface

# Earlier releases compute the attention of T5 in the model, without the interface.
T5_USES_INTERFACE = uses_interface(T5Attention)
# In earlier releases the implementation of ModernBERT cannot be changed after creation.
with warnings.catch_warnings(action="ignore"):
    MODERNBERT_SWITCHES = hf.ModernBertModel._can_set_attn_implementation()
_SAYS_POSITIONS = "cache_position" in inspect.signature(masking_utils.sdpa_mask).parameters


# In earlier releases the mask of images is a function that cannot be read, and is evaluated.
IMAGES_HAVE_RANGES = hasattr(masking_utils, "blockwise_overlay")
# In earlier releases the sliding layers of Gemma 3 add the images after the window.
WINDOWS_CUT_IMAGES = hasattr(modeling_gemma3, "create_masks_for_vision_model")
# In some releases `generate` fails for chunks with any implementation: it passes an argument that does not exist.
_ASKED, _TAKEN = (
    "block_sequence_ids" in inspect.signature(function).parameters
    for function in (masking_utils.create_masks_for_generate, masking_utils.create_chunked_causal_mask)
)
CHUNKS_IN_A_STATIC_CACHE = _TAKEN or not _ASKED


def asks_for_masks(model: nn.Module) -> bool:
    """Whether a model requests its masks; in earlier releases some models made dense masks themselves."""
    return hasattr(sys.modules[type(model).__module__], "create_causal_mask")


def at(q_length: int, q_offset: int = 0) -> dict[str, Any]:
    """The position of the queries of a mask, as arguments of this release."""
    if _SAYS_POSITIONS:
        return {"cache_position": torch.arange(q_offset, q_offset + q_length)}
    return {"q_length": q_length, "q_offset": q_offset}


def set_attention(model: nn.Module, implementation: str) -> None:
    """Switch all parts. Until 5.19 `model.set_attn_implementation` leaves out the encoder and decoder of T5."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            part.set_attn_implementation(implementation)
