"""FlexAttention through a `BlockMask` that is made from ranges: one compiled kernel serves every mask with ranges.

>>> from rearview.attention.engines import flex
>>> flex.summary
'FlexAttention, compiled, through a BlockMask'

The mask travels as two integer tables (where each range starts and ends), not as code, so a new mask or a new
packing of documents does not compile anything. The tiles come from the same ranges in O(tiles) memory.
"""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.request import Request
from rearview.masks import Spans

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from rearview.masks.exchange.flex import MaskMod

name = "flex"
summary = "FlexAttention, compiled, through a BlockMask"

BLOCK = 128

# A mask object serves every layer and step of a model; its BlockMask goes when the ranges go.
_block_masks: weakref.WeakKeyDictionary[Spans, dict[torch.device, BlockMask]] = weakref.WeakKeyDictionary()

RECOMPILATIONS = 256


def refusals(request: Request) -> list[str]:
    reasons = []
    on_cpu = request.device.type == "cpu"
    if request.dropout:
        reasons.append("it has no dropout")
    if on_cpu and request.needs_grad:
        reasons.append("FlexAttention on a CPU is forward only")
    if isinstance(request.bias, Tensor) and request.bias.requires_grad and request.needs_grad:
        reasons.append("FlexAttention does not compile at every size with a bias that needs gradients")
    if on_cpu and request.return_lse:
        reasons.append("FlexAttention on a CPU does not return the log-sum-exp")
    if request.device.type not in ("cpu", "cuda"):
        reasons.append(f"FlexAttention has no kernel for {request.device.type}")
    if request.query.dtype == torch.float64 and not on_cpu:
        reasons.append("FlexAttention on a GPU has no float64")
    if on_cpu and not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        reasons.append("FlexAttention on a CPU needs a C++ compiler at run time, and none is on the PATH")
    return reasons


def run(request: Request) -> tuple[Tensor, Tensor | None]:
    import torch._dynamo.config
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    attention = _compiled(flex_attention, request.device.type)
    key, value = request.shielded()
    # Past its limit of recompilations dynamo would raise (fullgraph) or fall back to a dense T x T: allow many.
    with torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS):
        answer = attention(
            request.query,
            key,
            value,
            score_mod=_score_mod(request),
            block_mask=None if request.hears_everything else _block_mask(request),
            scale=request.scale,
            enable_gqa=request.key_heads != request.heads,
            return_aux=AuxRequest(lse=True) if request.return_lse else None,
        )
    return (answer[0], answer[1].lse) if request.return_lse else (answer, None)


@cache
def _compiled(function: Callable, device: str) -> Callable:
    # On a CPU the generated code for a dynamic length does not compile with documents (torch 2.13).
    return torch.compile(function, dynamic=False if device == "cpu" else None, fullgraph=True)


def _block_mask(request: Request) -> BlockMask:
    """The mask's BlockMask, made once for its ranges and a device: making it takes longer than a kernel."""
    spans = request.spans
    if spans is None:
        return _made(request, None)
    made = _block_masks.setdefault(spans, {})
    if request.device not in made:
        from rearview.masks.exchange.flex import range_mod

        made[request.device] = _made(request, range_mod(request.mask.spans_in(request.frame, request.device)))
    return made[request.device]


def _made(request: Request, mask_mod: MaskMod | None) -> BlockMask:
    from rearview.masks.exchange.flex import to_block_mask

    frame = request.frame
    return to_block_mask(
        request.mask,
        frame.q_len,
        frame.k_len,
        q_start=None if frame.q_start < 0 else frame.q_start,
        block_size=BLOCK,
        device=request.device,
        mask_mod=mask_mod,
    )


def _score_mod(request: Request) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    softcap, bias, q_start = request.softcap, request.bias, request.frame.q_start
    if softcap is None and bias is None:
        return None
    slopes = bias.slopes.to(request.device) if isinstance(bias, Alibi) else None
    table = bias if isinstance(bias, Tensor) else None
    wide = [size > 1 for size in table.shape] if table is not None else []

    def score(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if softcap is not None:
            s = softcap * torch.tanh(s / softcap)
        if slopes is not None:
            s = s - slopes[h] * (q + q_start - k).abs()
        if table is not None:
            at = [index if is_wide else index * 0 for index, is_wide in zip((b, h, q, k), wide, strict=True)]
            s = s + table[at[0], at[1], at[2], at[3]]
        return s

    return score
