"""The terms between the product and the softmax, as the kernels take them: flags, tensors and numbers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rearview.attention.call import Call

LOG2_E = 1 / math.log(2)

# Query, key, value, bias and sinks.
Tensors = tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]


class Scores:
    """`flags` are constants of the kernels, `numbers` follow their sizes. `nothing` stands for tensors not given."""

    def __init__(self, tensors: Tensors, call: Call, nothing: Tensor) -> None:
        query, bias, sinks = tensors[0], tensors[3], tensors[4]
        alibi, softcap = call.alibi, call.softcap
        self.slopes = nothing if alibi is None else alibi.slopes.to(query.device, torch.float32)
        self.sinks = nothing if sinks is None else sinks.detach().float()
        self.bias = nothing if bias is None else bias.detach()
        self.flags = {
            # The maximum of the products is that of the scores only if the scale is above 0.
            "PLAIN": softcap is None and alibi is None and bias is None and call.scale > 0,
            "SOFTCAP": softcap is not None,
            "ALIBI": alibi is not None,
            "BIAS": bias is not None,
            "DROPOUT": call.dropout > 0,
        }
        seed = 0 if call.seed is None else int(call.seed)
        strides = (0, 0, 0, 0)
        if bias is not None:
            strides = bias.expand(*query.shape[:3], call.frame.k_len).stride()
        self.numbers = (
            call.scale * LOG2_E if softcap is None else call.scale / softcap,
            0.0 if softcap is None else softcap * LOG2_E,
            *strides,
            _signed(seed & 0xFFFFFFFF), _signed(seed >> 32), int(call.dropout * 16777216.0), 1 / (1 - call.dropout),
        )  # fmt: skip


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word
