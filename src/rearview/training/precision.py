"""The precision of training: bfloat16 where the hardware supports it, otherwise float32.

Weights, sums of gradients and losses are float32; only matrix products are in bfloat16, by torch's autocast.

>>> import torch
>>> chosen("float32", torch.device("cpu"))
torch.float32
"""

from __future__ import annotations

from typing import Literal

import torch

from rearview.errors import BadArgument

Precision = Literal["auto", "float32", "bfloat16"]


def chosen(precision: str, device: torch.device) -> torch.dtype:
    """The dtype that a name means on a device. "auto" is bfloat16 where the hardware supports it."""
    if precision not in ("auto", "float32", "bfloat16"):
        raise BadArgument("precision", expected='"auto", "float32" or "bfloat16"', got=repr(precision))
    if precision == "float32" or (precision == "auto" and not _multiplies_bfloat16(device)):
        return torch.float32
    return torch.bfloat16


def _multiplies_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu":
        return False
    # Torch has no public function that tells what a CPU supports.
    asks = [getattr(torch.cpu, name, None) for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported")]
    return any(ask is not None and ask() for ask in asks)
