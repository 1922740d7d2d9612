"""Masks to and from other libraries. What cannot be expressed exactly raises `Unsupported`; nothing is dropped.

>>> from rearview import causal
>>> from rearview.masks.exchange import to_flash, to_sdpa
>>> to_sdpa(causal(), 8), to_flash(causal(), 8)
({'attn_mask': None, 'is_causal': True}, {'causal': True, 'window_size': (-1, -1)})
"""

from rearview.masks.exchange.block_mask import from_block_mask
from rearview.masks.exchange.cu_seqlens import from_cu_seqlens, to_cu_seqlens
from rearview.masks.exchange.flash import FlashArguments, from_flash, to_flash
from rearview.masks.exchange.flashmask import FlashMaskArguments, from_flashmask, to_flashmask
from rearview.masks.exchange.flex import to_block_mask, to_mask_mod
from rearview.masks.exchange.huggingface import from_huggingface, to_huggingface, to_mask_function
from rearview.masks.exchange.magi import MagiArguments, from_magi, to_magi
from rearview.masks.exchange.mask_mod import from_mask_mod
from rearview.masks.exchange.sdpa import SdpaArguments, from_sdpa, to_sdpa
from rearview.masks.exchange.tensors import from_additive, from_bool, to_additive

__all__ = [
    # Plain tensors.
    "to_additive",
    "from_additive",
    "from_bool",
    # PyTorch.
    "SdpaArguments",
    "to_sdpa",
    "from_sdpa",
    # FlexAttention.
    "to_mask_mod",
    "from_mask_mod",
    "to_block_mask",
    "from_block_mask",
    # FlashAttention.
    "FlashArguments",
    "to_flash",
    "from_flash",
    # Packed sequences of any varlen function.
    "to_cu_seqlens",
    "from_cu_seqlens",
    # FlashMask.
    "FlashMaskArguments",
    "to_flashmask",
    "from_flashmask",
    # MagiAttention.
    "MagiArguments",
    "to_magi",
    "from_magi",
    # Hugging Face transformers.
    "to_huggingface",
    "from_huggingface",
    "to_mask_function",
]
