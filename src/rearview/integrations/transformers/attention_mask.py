"""The `attention_mask` of an attention function, read as a mask, the position of the first query, and a bias.

    >>> import torch
    >>> query, key = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8)
    >>> read(None, query, key, is_causal=True, implementation="sdpa")
    ReadMask(mask=causal(), q_start=0, bias=None)

Each implementation has its own form. SDPA uses a bool tensor, or None, which means `is_causal` of the module. Eager
attention uses a tensor of 0 and finfo.min, or None for no mask at all. FlexAttention uses a BlockMask. A user may pass
either kind of tensor to the model. FlashAttention receives only a part of the mask and is therefore refused.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from rearview.errors import BadArgument, Unsupported
from rearview.integrations.transformers.mask_tensor import MaskTensor
from rearview.masks import Frame, Mask, causal, dense, full, padding
from rearview.masks.data import described
from rearview.masks.exchange import from_block_mask
from rearview.masks.exchange.tensors import LOWEST

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask


class ReadMask(NamedTuple):
    """`bias` has the numbers of an additive mask other than 0 and "blocked"."""

    mask: Mask
    q_start: int | None = None
    bias: Tensor | None = None


def read(
    attention_mask: Tensor | BlockMask | None, query: Tensor, key: Tensor, *, is_causal: bool, implementation: str
) -> ReadMask:
    """The mask that `implementation` applies when it receives `attention_mask` for this query and key."""
    if "flash" in implementation:
        raise Unsupported(
            f"attn_implementation={implementation!r}",
            ["it receives only the padding as a mask; the rest is in arguments of its own"],
            advice='Use model.set_attn_implementation("sdpa"), whose mask is complete.',
        )
    if attention_mask is None:
        return _without_mask(query, is_causal=is_causal, implementation=implementation)
    if isinstance(attention_mask, MaskTensor):
        return _from_mask_tensor(attention_mask, query, key)
    if not isinstance(attention_mask, Tensor) and hasattr(attention_mask, "kv_num_blocks"):
        return ReadMask(from_block_mask(attention_mask))
    if not isinstance(attention_mask, Tensor) or attention_mask.ndim != 4:
        raise Unsupported(
            "this attention_mask",
            [f"expected a tensor [batch, head, query, key], a BlockMask or None, got {described(attention_mask)}"],
            advice="Pass a 2-D padding mask to the model, which makes the 4-D mask from it.",
        )
    # Models with a static cache may pass more columns than there are keys; eager attention crops them too.
    seen = attention_mask[..., : key.shape[2]]
    whole = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    if any(size not in (1, axis) for size, axis in zip(seen.shape, whole, strict=True)):
        expected = f"a tensor that broadcasts to {list(whole)}"
        raise BadArgument("attention_mask", expected=expected, got=list(attention_mask.shape))
    if seen.dtype == torch.bool:
        return ReadMask(_from_bool(seen, whole))
    if seen.is_floating_point():
        return _from_additive(seen, whole)
    raise Unsupported(
        "this attention_mask",
        [f"{described(attention_mask)} does not say whether it is added or multiplied"],
        advice="Use a bool tensor, True = heard, or numbers to add: 0 and -inf.",
    )


def _without_mask(query: Tensor, *, is_causal: bool, implementation: str) -> ReadMask:
    # A single query is at the last key whatever is_causal is, and is_causal is aligned at the first key.
    if implementation in ("eager", "flex_attention") or not is_causal or query.shape[2] == 1:
        return ReadMask(full())
    return ReadMask(causal(), 0)


def _from_mask_tensor(got: MaskTensor, query: Tensor, key: Tensor) -> ReadMask:
    mask, frame = got.mask, got.frame
    if frame.q_len != query.shape[2] or frame.k_len < key.shape[2]:
        raise BadArgument(
            "attention_mask",
            expected=f"a mask for {query.shape[2]} queries over {key.shape[2]} keys",
            got=repr(got),
            advice="The model made the mask for tensors of another size than those that it attends with.",
        )
    frame = Frame(frame.q_len, key.shape[2], frame.q_start)
    if got.shard is not None:
        return ReadMask(mask)
    if mask.batch not in (None, query.shape[0]) or mask.heads not in (None, query.shape[1]):
        return ReadMask(dense(mask.visible_in(frame, query.device)))
    # Where the queries are at the last positions, `q_start` is the default (and may be negative).
    return ReadMask(mask, None if frame.q_start == frame.k_len - frame.q_len else frame.q_start)


def _from_bool(visible: Tensor, whole: tuple[int, ...]) -> Mask:
    _, heads, q_len, k_len = visible.shape
    if heads == q_len == 1 and k_len == whole[3]:
        # The same keys for every query: padding, which has ranges.
        return padding(visible[:, 0, 0].expand(whole[0], -1))
    return dense(visible.expand(-1, -1, whole[2], whole[3]))


def _from_additive(added: Tensor, whole: tuple[int, ...]) -> ReadMask:
    blocked = added == -math.inf
    for value in LOWEST:
        blocked |= added == torch.tensor(value, dtype=torch.float64).to(added)
    bias = added.masked_fill(blocked, 0)
    # A compiled graph cannot test whether there is a bias, and adding zeros is correct too.
    has_bias = torch.compiler.is_compiling() or bias.requires_grad or bool(bias.any())
    return ReadMask(_from_bool(~blocked, whole), None, bias if has_bias else None)
