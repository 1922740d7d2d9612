"""The two functions that `register` gives to transformers: one makes masks, the other computes attention.

    >>> import torch
    >>> from transformers.masking_utils import causal_mask_function
    >>> mask = rearview_mask(batch_size=1, q_length=4, kv_length=4, mask_function=causal_mask_function)
    >>> mask
    MaskTensor(causal(), 4 queries at 0, 4 keys)
    >>> x = torch.randn(1, 2, 4, 8)
    >>> out, weights = rearview_attention(torch.nn.Module(), x, x, x, mask)
    >>> out.shape, weights
    (torch.Size([1, 4, 2, 8]), None)

A model asks for its mask once per kind of layer. It passes the positions of its queries and keys, the padding, and a
function (batch, head, query, key) -> bool. The mask then passes through the model to the attention function. It is
always a `MaskTensor` and never None, which would leave the attention function to guess.

Functions that transformers builds itself become masks with ranges, in O(T) memory. Functions of a user or of a single
model are evaluated for every pair and become dense masks, which are exact and take batch x query x key bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rearview.attention.functional import run, weights_of
from rearview.attention.sequence_shard import active_shard
from rearview.integrations.transformers.call import call_of
from rearview.integrations.transformers.mask_functions import MaskPlacement, as_mask, joined, real_keys
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.integrations.transformers.sharded_mask import sharded_mask
from rearview.masks import Frame, dense

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


def rearview_mask(
    *,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    **asked: Any,
) -> Tensor:
    """The mask of `mask_function` and of the padding `attention_mask` [batch, position], True = a real key.

    `dtype` is that of the model. The other options give the positions of queries and keys (`MaskPlacement.asked`), the
    device, whether None may be returned (it never is), and how to evaluate a function that is not known.

    >>> rearview_mask(batch_size=1, q_length=1, kv_length=3, q_offset=2, attention_mask=torch.tensor([[0, 1, 1]]))
    MaskTensor(causal() & padding([[False, True, True]]), 1 query at 2, 3 keys)
    """
    from transformers import masking_utils as theirs

    function = theirs.causal_mask_function if mask_function is None else mask_function
    positions = asked.get("cache_position")
    device = asked.get("device", "cpu") if positions is None else positions.device

    def evaluated() -> Tensor:
        """Bool [batch, 1, query, key], which transformers evaluates for every pair."""
        skips: dict[str, Any] = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return theirs.sdpa_mask(  # type: ignore[return-value]
            mask_function=function, attention_mask=attention_mask, **(asked | skips)
        )

    # A compiled graph cannot read values such as the position in a static cache, so its mask is a dense tensor.
    if torch.compiler.is_compiling():
        return torch.where(evaluated(), torch.zeros((), dtype=dtype, device=device), torch.finfo(dtype).min)
    place = MaskPlacement.asked(**asked)
    if (shard := active_shard()) is not None:
        mask = sharded_mask(function, place, shard, real=attention_mask)
        return MaskTensor.of(mask, place.frame, batch=place.batch, dtype=dtype, device=device, shard=shard)
    mask, frame = as_mask(function, place), place.frame
    if mask is None:
        mask, frame = dense(evaluated()), Frame.of(place.q_len, place.k_len)
    elif attention_mask is not None:
        mask = joined(mask, real_keys(attention_mask, place))
    return MaskTensor.of(mask, frame, batch=place.batch, dtype=dtype, device=device)


def rearview_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | BlockMask | None,
    output_attentions: bool | None = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The output [batch, query, heads, dim], and the weights if `output_attentions` is True."""
    call = call_of(module, query, key, value, attention_mask, **options)
    out, _ = run(call)
    weights = weights_of(call).to(query.dtype) if output_attentions else None
    return out.transpose(1, 2).contiguous(), weights
