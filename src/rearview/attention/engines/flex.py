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
from rearview.attention.call import Call
from rearview.attention.sinks import counted_in
from rearview.masks import Spans

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from rearview.masks.exchange.flex import MaskMod

name = "flex"
summary = "FlexAttention, compiled, through a BlockMask"
where = "CUDA GPUs; CPUs, forward only"

BLOCK = 128

# A mask object serves every layer and step of a model; its BlockMask goes when the ranges go.
_block_masks: weakref.WeakKeyDictionary[Spans, dict[torch.device, BlockMask]] = weakref.WeakKeyDictionary()

RECOMPILATIONS = 256


def refusals(call: Call) -> list[str]:
    reasons = []
    on_cpu = call.device.type == "cpu"
    if call.pages is not None:
        reasons.append("it does not read pages")
    if call.batch_invariant:
        reasons.append("FlexAttention adds up in an order that depends on the sizes")
    if call.dropout:
        reasons.append("it has no dropout")
    if call.has_tangents:
        reasons.append("it has no forward-mode derivatives")
    if on_cpu and call.needs_grad:
        reasons.append("FlexAttention on a CPU is forward only")
    if isinstance(call.bias, Tensor) and call.bias.requires_grad and call.needs_grad:
        reasons.append("FlexAttention does not compile at every size with a bias that needs gradients")
    if on_cpu and call.needs_lse:
        reasons.append("FlexAttention on a CPU does not return the log-sum-exp")
    if call.device.type not in ("cpu", "cuda"):
        reasons.append(f"FlexAttention has no kernel for {call.device.type}")
    if call.query.dtype == torch.float64:
        reasons.append("FlexAttention has no float64 kernel")
    per_key_head = call.frame.q_len * call.queries_per_key_head
    if not on_cpu and call.frame.q_len < BLOCK < per_key_head:
        # Its decoding kernel has no configuration for these, unless a dynamic shape was compiled before (torch 2.11).
        reasons.append(f"FlexAttention does not compile for {per_key_head} short queries per key head")
    if on_cpu and not any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++")):
        reasons.append("FlexAttention on a CPU needs a C++ compiler at run time, and none is on the PATH")
    return reasons


def reason_to_take(call: Call) -> str | None:
    # On GPUs `gpu_choice` decides, from what was measured.
    return None


def reason_not_taken(call: Call, taken: str) -> str:
    return "it would be compiled at the first call, which takes seconds"


def memory(call: Call) -> int:
    tiles = -(-call.frame.q_len // BLOCK) * -(-call.frame.k_len // BLOCK)
    return 16 * (call.mask.batch or 1) * (call.mask.heads or 1) * tiles


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    import torch._dynamo.config
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    attention = _compiled(flex_attention, call.device.type)
    key, value = call.shielded()
    # Past its limit of recompilations dynamo would raise (fullgraph) or fall back to a dense T x T: allow many.
    with torch._dynamo.config.patch(recompile_limit=RECOMPILATIONS):
        answer = attention(
            call.query,
            key,
            value,
            score_mod=_score_mod(call),
            # Never None: a graph that was compiled with a BlockMask fails its own guards on None (torch 2.13).
            block_mask=_block_mask(call),
            scale=call.scale,
            enable_gqa=call.key_heads != call.heads,
            return_aux=AuxRequest(lse=True) if call.needs_lse else None,
        )
    return counted_in(call.sinks, answer[0], answer[1].lse) if call.needs_lse else (answer, None)


@cache
def _compiled(function: Callable, device: str) -> Callable:
    # On a CPU the generated code for a dynamic length does not compile with documents (torch 2.13).
    return torch.compile(function, dynamic=False if device == "cpu" else None, fullgraph=True)


def _block_mask(call: Call) -> BlockMask:
    """The mask's BlockMask, made once for its ranges and a device: making it takes longer than a kernel."""
    spans = call.spans
    if spans is None:
        return _made(call, None)
    made = _block_masks.setdefault(spans, {})
    if call.device not in made:
        from rearview.masks.exchange.flex import range_mod

        made[call.device] = _made(call, range_mod(call.mask.spans_in(call.frame, call.device)))
    return made[call.device]


def _made(call: Call, mask_mod: MaskMod | None) -> BlockMask:
    from rearview.masks.exchange.flex import to_block_mask

    frame = call.frame
    return to_block_mask(
        call.mask,
        frame.q_len,
        frame.k_len,
        q_start=None if frame.q_start < 0 else frame.q_start,
        block_size=BLOCK,
        device=call.device,
        mask_mod=mask_mod,
    )


def _score_mod(call: Call) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor] | None:
    softcap, bias, q_start = call.softcap, call.bias, call.frame.q_start
    if softcap is None and bias is None:
        return None
    slopes = bias.slopes.to(call.device) if isinstance(bias, Alibi) else None
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
