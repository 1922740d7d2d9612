"""Masks to and from PyTorch's scaled_dot_product_attention, whose `is_causal` is aligned at the top left.

>>> from rearview import causal, window
>>> from rearview.masks.exchange import to_sdpa
>>> to_sdpa(causal() & window(4096), 8)
{'attn_mask': None, 'is_causal': True}
"""

from typing import TypedDict

import torch
from torch import Tensor

from rearview.errors import BadArgument
from rearview.masks.data import as_device, check_plain, described, true_or_false
from rearview.masks.exchange.checked import checked
from rearview.masks.exchange.tensors import from_additive, from_bool
from rearview.masks.families import causal, full, window
from rearview.masks.frame import Frame, whole_number
from rearview.masks.mask import Mask


class SdpaArguments(TypedDict):
    """Arguments for `F.scaled_dot_product_attention(query, key, value, **arguments)`."""

    attn_mask: Tensor | None
    is_causal: bool


def to_sdpa(
    mask: Mask,
    q_len: int,
    k_len: int | None = None,
    *,
    q_start: int | None = None,
    device: torch.device | str | None = None,
) -> SdpaArguments:
    """The arguments that mean exactly this mask: nothing at all, `is_causal`, or else a bool `attn_mask`.

    A mask is recognised by its meaning at this size, however it is written.

    >>> to_sdpa(causal(), 1, 8)            # one query over a cache hears all of it
    {'attn_mask': None, 'is_causal': False}
    >>> to_sdpa(causal(), 2, 3)["attn_mask"].int().tolist()     # is_causal would mean the first rows here
    [[[[1, 1, 0], [1, 1, 1]]]]
    """
    frame, device = Frame.of(q_len, k_len, q_start), as_device(device)
    checked(mask)._check(frame)
    simple = mask._simplify(frame)
    if _same(simple, full(), frame, device):
        return {"attn_mask": None, "is_causal": False}
    # Causal from the top left and from the bottom right are the same for a square only.
    if frame.q_start == 0 and frame.q_len == frame.k_len and _same(simple, causal(), frame, device):
        return {"attn_mask": None, "is_causal": True}
    return {"attn_mask": simple.visible_in(frame, device), "is_causal": False}


def from_sdpa(attn_mask: Tensor | None = None, is_causal: bool = False, *, q_len: int, k_len: int) -> Mask:
    """The mask that SDPA applies for these arguments: bool True = heard, float = added, causal from the top left.

    The rows of the result are at the last positions, as in every mask. For `is_causal` over a longer cache this
    shows what SDPA really does: its first query hears key 0 only.

    >>> from_sdpa(is_causal=True, q_len=2, k_len=4).to_bool(2, 4).int().tolist()
    [[1, 0, 0, 0], [1, 1, 0, 0]]
    """
    q_len, k_len = whole_number(q_len, "q_len", at_least=1), whole_number(k_len, "k_len", at_least=1)
    if true_or_false(is_causal, "is_causal") and attn_mask is not None:
        raise BadArgument(
            "attn_mask, is_causal",
            expected="one of the two",
            got="both",
            advice="Some SDPA kernels raise for both and some combine them. Write from_sdpa(attn_mask=...) & causal().",
        )
    if attn_mask is not None:
        return _from_attn_mask(attn_mask, q_len, k_len)
    return _causal_from_the_top_left(k_len - q_len) if is_causal else full()


def _same(mask: Mask, named: Mask, frame: Frame, device: torch.device) -> bool:
    if mask.has_ranges:
        return mask.spans_in(frame, device).equals(named.spans_in(frame, device))
    # A mask without ranges is made dense in any case.
    return bool((mask.visible_in(frame, device) == named.visible_in(frame, device)).all())


def _causal_from_the_top_left(offset: int) -> Mask:
    # Row 0 is at position `offset` and hears key 0 only: key <= position - offset.
    if offset == 0:
        return causal()
    return causal() & ~window(offset) if offset > 0 else causal() | window(1, ahead=-offset)


def _from_attn_mask(attn_mask: Tensor, q_len: int, k_len: int) -> Mask:
    known = isinstance(attn_mask, Tensor) and (attn_mask.dtype == torch.bool or attn_mask.is_floating_point())
    if not known or attn_mask.ndim not in (2, 4):
        raise BadArgument(
            "attn_mask",
            expected=f"a bool or float tensor that broadcasts to [{q_len}, {k_len}] or [batch, head, {q_len}, {k_len}]",
            got=described(attn_mask),
            advice="A padding mask [batch, key] is attn_mask[:, None, None, :].",
        )
    check_plain(attn_mask, "attn_mask", expected="a plain tensor")
    sizes = (*attn_mask.shape[:-2], q_len, k_len)
    if any(got not in (1, size) for got, size in zip(attn_mask.shape, sizes, strict=True)):
        raise BadArgument("attn_mask", expected=f"shape {list(sizes)}", got=list(attn_mask.shape))
    attn_mask = attn_mask.expand(sizes)
    return from_bool(attn_mask, true_means="heard") if attn_mask.dtype == torch.bool else from_additive(attn_mask)
