"""The mask function that transformers calls for `attn_implementation="rearview"`.

    >>> from transformers.masking_utils import causal_mask_function
    >>> rearview_mask(batch_size=1, q_length=4, kv_length=4, mask_function=causal_mask_function)
    TravellingMask(causal(), 4 queries at 0, 4 keys)

A model asks for its mask once for each kind of layer, with where its queries and keys stand, the padding and a function
(batch, head, query, key) -> bool. The answer goes through the model and comes to the attention function. It is a
`TravellingMask` here, never None: None would leave it to the attention function to guess.

Functions that transformers builds itself become masks with ranges, in memory of O(T). A function of the user's, or of a
model's own, is evaluated for every pair and becomes a dense mask, which is exact and takes batch x query x key bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rearview.integrations.transformers.structure import Place, as_mask, joined, real_keys
from rearview.integrations.transformers.travelling import TravellingMask
from rearview.masks import Frame, dense


def rearview_mask(
    *,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    **asked: Any,
) -> Tensor:
    """The mask of `mask_function` and the padding `attention_mask` [batch, position], True = a real key.

    `dtype` is the model's. What else is `asked` says where queries and keys stand (`Place.asked`), on which device,
    when None would do, which is never said here, and how to evaluate a function that is not known.

    >>> rearview_mask(batch_size=1, q_length=1, kv_length=3, q_offset=2, attention_mask=torch.tensor([[0, 1, 1]]))
    TravellingMask(causal() & padding([[False, True, True]]), 1 query at 2, 3 keys)
    """
    from transformers import masking_utils as theirs

    function = theirs.causal_mask_function if mask_function is None else mask_function
    positions = asked.get("cache_position")
    device = asked.get("device", "cpu") if positions is None else positions.device

    def evaluated() -> Tensor:
        """Bool [batch, 1, query, key], made by transformers for every pair."""
        skips: dict[str, Any] = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return theirs.sdpa_mask(  # type: ignore[return-value]
            mask_function=function, attention_mask=attention_mask, **(asked | skips)
        )

    # A compiled graph cannot read values, such as where a static cache stands: there the mask is a dense tensor.
    if torch.compiler.is_compiling():
        return torch.where(evaluated(), torch.zeros((), dtype=dtype, device=device), torch.finfo(dtype).min)
    place = Place.asked(**asked)
    mask, frame = as_mask(function, place), place.frame
    if mask is None:
        mask, frame = dense(evaluated()), Frame.of(place.q_len, place.k_len)
    elif attention_mask is not None:
        mask = joined(mask, real_keys(attention_mask, place))
    return TravellingMask.of(mask, frame, batch=place.batch, dtype=dtype, device=device)
