"""Masks to and from Hugging Face transformers: what each attention implementation takes, or a refusal.

    >>> from rearview import causal, padding
    >>> from rearview.masks.exchange import to_huggingface
    >>> mask = to_huggingface(causal() & padding([2, 3]), 3, implementation="sdpa")
    >>> mask[0, 0].int().tolist()
    [[1, 0, 0], [1, 1, 0], [1, 1, 0]]

`model(input_ids, attention_mask=mask)` takes a 4-D mask as it is and adds nothing to it, not even its own causal mask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.masks.data import as_device, check_plain, check_readable, described
from rearview.masks.exchange.batch import batch_of
from rearview.masks.exchange.block_mask import from_block_mask
from rearview.masks.exchange.checked import checked
from rearview.masks.exchange.flex import MaskMod, to_block_mask
from rearview.masks.exchange.tensors import from_additive, from_bool, to_additive
from rearview.masks.families import causal
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask
from rearview.masks.packing import documents, padding
from rearview.masks.spans import Spans

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

Implementation = Literal["eager", "sdpa", "flex_attention", "flash_attention_2"]


def to_huggingface(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    implementation: Implementation,
    q_start: int | None = None,
    batch: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Tensor | BlockMask | None:
    """The `attention_mask` for a model with this `attn_implementation`, or `Unsupported`.

    - `eager`: numbers to add, 0 and finfo(dtype).min, as the model itself writes them. `dtype` is the model's.
    - `sdpa`: bool, True = heard.
    - `flex_attention`: a BlockMask.
    - `flash_attention_2`: the 2-D padding mask, or None where every key is real. The model adds `causal` and drops
      the rest of the mask, so only causal() & padding(...) is accepted. It returns 0 at padded queries.

    >>> to_huggingface(causal(), 2, implementation="eager").tolist()
    [[[[0.0, -3.4028234663852886e+38], [0.0, 0.0]]]]
    """
    q_len = whole_number(q_len, "q_len", at_least=1)
    frame, on, items = Frame.of(q_len, k_len, q_start), as_device(device), batch_of(mask, batch)
    match implementation if isinstance(implementation, str) else None:
        case "flex_attention":
            return to_block_mask(mask, q_len, k_len, q_start=q_start, device=on)
        case "flash_attention_2":
            return _to_padding_mask(mask, frame, items, on)
        case "sdpa":
            return mask.visible_in(frame, on).expand(items, -1, -1, -1)
        case "eager":
            return _to_lowest(mask, frame, items, on, dtype)
    expected = "'eager', 'sdpa', 'flex_attention' or 'flash_attention_2'"
    raise BadArgument("implementation", expected=expected, got=repr(implementation))


def from_huggingface(attention_mask: Tensor | BlockMask) -> Mask:
    """The mask that an `attention_mask` means: 2-D [batch, key] padding, 4-D bool or additive, a BlockMask.

    A 2-D mask marks the real keys and nothing else: a decoder adds its own causal mask, so
    `causal() & from_huggingface(attention_mask)` is what it applies.

    >>> from_huggingface(torch.tensor([[0, 1, 1], [1, 1, 1]]))
    padding([[False, True, True], [True, True, True]])
    """
    if hasattr(attention_mask, "kv_num_blocks"):
        return from_block_mask(attention_mask)  # type: ignore[arg-type]
    if isinstance(attention_mask, Tensor):
        check_plain(attention_mask, "attention_mask", expected="a plain tensor")
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 4:
        if attention_mask.dtype == torch.bool:
            return from_bool(attention_mask, true_means="heard")
        if attention_mask.is_floating_point():
            return from_additive(attention_mask)
    if isinstance(attention_mask, Tensor) and attention_mask.ndim == 2:
        return _from_padding_mask(attention_mask)
    raise BadArgument(
        "attention_mask",
        expected="a 2-D padding mask, a 4-D bool or float mask, or a BlockMask",
        got=described(attention_mask),
    )


def to_mask_function(mask: Mask, *, length: int) -> MaskMod:
    """The mask as a transformers mask function (batch_idx, head_idx, q_idx, kv_idx), for positions below `length`.

    For `create_causal_mask(..., and_mask_function=...)` and similar functions, which add the position in the cache.
    Positions from `length` on are not heard. transformers silently drops mask functions when the model uses flash
    attention: there use `to_huggingface`, which refuses.

    >>> function = to_mask_function(causal(), length=8)
    >>> function(*torch.tensor([0, 0, 3, 4])).item()
    False
    """
    length = whole_number(length, "length", at_least=1)
    checked(mask)._check(Frame.of(length))

    def mask_function(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        # A static cache asks beyond the sequence, where the mask may have no data.
        known = (q_idx < length) & (kv_idx < length)
        return known & mask.visible(batch_idx, head_idx, q_idx.clamp(max=length - 1), kv_idx.clamp(max=length - 1))

    return mask_function


def _to_lowest(mask: Mask, frame: Frame, batch: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise BadArgument("dtype", expected="the floating point dtype of the model", got=dtype)
    visible = mask.visible_in(frame, device).expand(batch, -1, -1, -1)
    empty = ~visible.any(-1)
    if bool(empty.any()):
        item, head, query = empty.nonzero()[0].tolist()
        raise Unsupported(
            f"to_huggingface(implementation='eager'): {mask!r}",
            [
                f"{int(empty.sum())} of {empty.numel()} queries hear nothing, such as query {query} of item {item}",
                "eager attention adds finfo.min: such a row becomes mean(V), and in float16 it is not masked at all",
            ],
            advice="Let every query hear itself, mask | window(1), or use implementation='sdpa', which returns 0.",
        )
    return to_additive(visible, dtype=dtype, blocked=torch.finfo(dtype).min)


def _to_padding_mask(mask: Mask, frame: Frame, batch: int, device: torch.device) -> Tensor | None:
    spans = mask.spans_in(frame, device) if mask.has_ranges else Spans.from_bool(mask.visible_in(frame, device))
    real = spans.heard_keys.any(1).expand(batch, -1)
    # The model unpads queries with their keys, so what a padded query would hear is lost; all of it or none is fine.
    allowed = (causal() & padding(real), causal() & padding(real) & documents(real.long()))
    if not any(spans.equals(one.spans(frame.q_len, frame.k_len, device=device)) for one in allowed):
        raise Unsupported(
            f"to_huggingface(implementation='flash_attention_2'): {mask!r}",
            [
                "the model gets a 2-D padding mask and adds causal itself; it would drop the rest of this mask",
            ],
            advice="Use implementation='sdpa' or 'flex_attention', which take any mask.",
        )
    return None if bool(real.all()) else real.long()


def _from_padding_mask(real: Tensor) -> Mask:
    check_readable(real, "attention_mask", expected="a 2-D padding mask")
    if not bool(((real == 0) | (real == 1)).all()):
        raise BadArgument(
            "attention_mask",
            expected="0 and 1 in a 2-D padding mask, 1 = real",
            got=f"values from {real.min().item():g} to {real.max().item():g}",
            advice="For packed documents use documents(ids); for an additive [query, key] mask use from_additive.",
        )
    return padding(real.bool())
