"""The attention function that transformers calls for `attn_implementation="rearview"`.

>>> import torch
>>> x = torch.randn(1, 2, 4, 8)
>>> out, weights = rearview_attention(torch.nn.Module(), x, x, x, None)
>>> out.shape, weights
(torch.Size([1, 4, 2, 8]), None)
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from rearview.integrations.transformers.call import Call


def rearview_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    output_attentions: bool | None = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output as [batch, query, heads, dim], and the weights where they are asked for."""
    call = Call.of(module, query, key, value, attention_mask, **options)
    out = call.attend().transpose(1, 2).contiguous()
    return out, call.weights().to(query.dtype) if output_attentions else None
