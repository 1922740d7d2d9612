"""What an attention function receives as `attention_mask`, as a mask, a place and a bias.

    >>> import torch
    >>> query, key = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8)
    >>> read(None, query, key, is_causal=True, implementation="sdpa")
    Received(mask=causal(), q_start=0, bias=None)

Each implementation has a form of its own. SDPA's is a bool tensor or None, where None means `is_causal` of the module;
eager's is a tensor of 0 and finfo.min, where None means no mask at all; FlexAttention's is a BlockMask; a user may pass
either of the tensors to the model. FlashAttention gets a part of the mask only, so that is refused.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.integrations.transformers.travelling import TravellingMask
from rearview.masks import Frame, Mask, causal, dense, full, padding
from rearview.masks.exchange import from_block_mask
from rearview.masks.exchange.tensors import LOWEST, described


class Received(NamedTuple):
    """`bias` is what an additive mask holds beside 0 and "blocked"."""

    mask: Mask
    q_start: int | None = None
    bias: Tensor | None = None


def read(attention_mask: Any, query: Tensor, key: Tensor, *, is_causal: bool, implementation: str) -> Received:
    """The mask that `implementation` applies when it gets `attention_mask` for this query and key."""
    if "flash" in implementation:
        raise Unsupported(
            f"attn_implementation={implementation!r}",
            ["it gets the padding only; what else there is of the mask lies in its own arguments"],
            advice='Use model.set_attn_implementation("sdpa"), whose mask is complete.',
        )
    if attention_mask is None:
        return _without_mask(query, is_causal=is_causal, implementation=implementation)
    if isinstance(attention_mask, TravellingMask):
        return _travelled(attention_mask, query, key)
    if hasattr(attention_mask, "kv_num_blocks"):
        return Received(from_block_mask(attention_mask))
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
        raise Unsupported(
            "this attention_mask",
            [f"expected a tensor [batch, head, query, key], a BlockMask or None, got {described(attention_mask)}"],
            advice="A 2-D padding mask goes to the model, which makes the 4-D mask of it.",
        )
    # Models with a static cache may hand over more columns than there are keys; eager attention crops them too.
    seen = attention_mask[..., : key.shape[2]]
    whole = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if any(size not in (1, axis) for size, axis in zip(seen.shape, whole, strict=True)):
        expected = f"a tensor that broadcasts to {list(whole)}"
        raise BadArgument("attention_mask", expected=expected, came=list(attention_mask.shape))
    if seen.dtype == torch.bool:
        return Received(_from_bool(seen, whole))
    if seen.is_floating_point():
        return _from_additive(seen, whole)
    raise Unsupported(
        "this attention_mask",
        [f"{described(attention_mask)} does not say whether it is added or multiplied"],
        advice="Use bool, True = heard, or numbers to add: 0 and -inf.",
    )


def _without_mask(query: Tensor, *, is_causal: bool, implementation: str) -> Received:
    # One query is at the end of its keys, whatever is_causal says; and is_causal is aligned at the first key.
    if implementation in ("eager", "flex_attention") or not is_causal or query.shape[2] == 1:
        return Received(full())
    return Received(causal(), 0)


def _travelled(came: TravellingMask, query: Tensor, key: Tensor) -> Received:
    mask, frame = came.mask, came.frame
    if frame.q_len != query.shape[2] or frame.k_len < key.shape[2]:
        raise BadArgument(
            "attention_mask",
            expected=f"a mask for {query.shape[2]} queries over {key.shape[2]} keys",
            came=repr(came),
            advice="The model made it for other tensors than those that it attends with.",
        )
    frame = Frame(frame.q_len, key.shape[2], frame.q_start)
    if mask.batch not in (None, query.shape[0]) or mask.heads not in (None, query.shape[1]):
        return Received(dense(mask.visible_in(frame, query.device)))
    # Where the queries are the last positions, `q_start` says nothing new (and may be negative).
    return Received(mask, None if frame.q_start == frame.k_len - frame.q_len else frame.q_start)


def _from_bool(visible: Tensor, whole: tuple[int, ...]) -> Mask:
    _, heads, q_len, k_len = visible.shape
    if heads == q_len == 1 and k_len == whole[3]:
        # The same keys for every query: padding, which has ranges.
        return padding(visible[:, 0, 0].expand(whole[0], -1))
    return dense(visible.expand(-1, -1, whole[2], whole[3]))


def _from_additive(added: Tensor, whole: tuple[int, ...]) -> Received:
    blocked = added == -math.inf
    for value in LOWEST:
        blocked |= added == torch.tensor(value, dtype=torch.float64).to(added)
    bias = added.masked_fill(blocked, 0)
    # A compiled graph cannot ask whether there is a bias: adding zeros is right, too.
    has_bias = torch.compiler.is_compiling() or bias.requires_grad or bool(bias.any())
    return Received(_from_bool(~blocked, whole), None, bias if has_bias else None)
