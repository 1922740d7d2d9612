"""The attention of one layer of a transformers model with the edits of its mask.

>>> import torch
>>> from rearview.attention.mask_edits import MaskEdit, editing
>>> from rearview.masks import full
>>> layer, x = torch.nn.Module(), torch.ones(1, 2, 3, 4)
>>> with editing([layer], MaskEdit(~full(), heads=(1,))):
...     out, weights = edited_attention(layer, "sdpa", x, x, x, None, {})
>>> out[0, :, 0].sum().item(), out[0, :, 1].sum().item()
(12.0, 0.0)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rearview.attention.functional import run
from rearview.attention.mask_edits import edited
from rearview.errors import Unsupported
from rearview.integrations.transformers import recent_masks
from rearview.integrations.transformers.call import call_of


def edited_attention(
    module: nn.Module,
    implementation: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Any,
    options: dict[str, Any],
) -> tuple[Tensor, None]:
    """The output [batch, query, heads, dim] of an attention function of transformers, under the edited mask."""
    if options.get("output_attentions"):
        raise Unsupported("output_attentions", ["the masks of this model are edited"], advice="Use rearview.observe.")
    place, structured = recent_masks.placement_of(module, mask, query, key)
    if place is not None and place.kv_offset:
        dropped = f"its cache has dropped the first {place.kv_offset} keys, so positions are not those of the text"
        raise Unsupported(
            "The mask of a layer cannot be edited here", [dropped], advice="Run the model with use_cache=False."
        )
    given = mask if structured is None else structured
    call = call_of(module, query, key, value, given, implementation=implementation, **options)
    if place is not None and getattr(module, "is_causal", True) and call.frame.q_start != place.frame.q_start:
        call = replace(call, frame=replace(call.frame, q_start=place.frame.q_start))
    out, _ = run(replace(call, mask=edited(module, call.mask, heads=call.heads)))
    return out.transpose(1, 2).contiguous(), None
