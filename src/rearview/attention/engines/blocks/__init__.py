"""Structure-aware attention in plain PyTorch: the work is cut to the ranges that the mask leaves visible.

    >>> import torch
    >>> from rearview import attend, causal, documents
    >>> x = torch.randn(1, 2, 6, 8)
    >>> packed = causal() & documents([0, 0, 0, 1, 1, 1])
    >>> together = attend(x, x, x, mask=packed, engine="blocks")
    >>> torch.allclose(together[:, :, 3:], attend(x[:, :, 3:], x[:, :, 3:], x[:, :, 3:]), atol=1e-6)
    True

Forward, a strip of queries walks its tiles of keys with the running softmax of FlashAttention
(https://arxiv.org/abs/2205.14135, algorithm 1); backward recomputes the weights from the saved log-sum-exp
(algorithm 4). No score outlives its tile, so memory is linear in the length, and nothing is compiled.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rearview.attention.arguments import without_autocast
from rearview.attention.call import Call
from rearview.attention.engines.blocks.passes import BlockAttention
from rearview.attention.engines.blocks.schedule import KEYS_PER_TILE, LONG_ROW_STRIP, reaches_unheard_keys
from rearview.attention.sinks import counted_in

name = "blocks"
summary = "plain PyTorch, cut to the visible ranges"
where = "anywhere"

__all__ = ["memory", "name", "reason_not_taken", "reason_to_take", "refusals", "run", "summary", "where"]


def refusals(call: Call) -> list[str]:
    reasons = []
    if call.pages is not None:
        reasons.append("it does not read pages")
    if call.batch_invariant:
        reasons.append("its matrix products add up in an order that depends on the sizes")
    if call.has_tangents:
        reasons.append("it has no forward-mode derivatives")
    return reasons


def reason_to_take(call: Call) -> str | None:
    if not call.mask.has_ranges:
        return "it makes the mask for a strip of queries at a time, forward and backward, and compiles nothing"
    return "it computes the visible ranges only, forward and backward, and compiles nothing"


def reason_not_taken(call: Call, taken: str) -> str:
    if not call.needs_dense_mask:
        return f"{taken} expresses this mask too, and is faster"
    if call.device.type == "cuda":
        return "on a GPU its many small calls cost more than one fused kernel"
    return f"it computes the visible ranges in many calls of PyTorch, and {taken} was measured to be faster"


def memory(call: Call) -> int:
    tile = min(call.frame.q_len, LONG_ROW_STRIP) * min(call.frame.k_len, KEYS_PER_TILE)
    return 2 * call.batch * call.heads * tile * call.work_dtype.itemsize


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    # The schedule is Python that reads the mask's values: a compiled graph breaks here and continues after it.
    # Asked for only then, because it imports the compiler.
    if torch.compiler.is_compiling():
        return torch.compiler.disable(_run)(call)  # pyright: ignore[reportReturnType, reportArgumentType]
    return _run(call)


def _run(call: Call) -> tuple[Tensor, Tensor | None]:
    key, value = call.key, call.value
    # Keys that no query hears are not read, except in a short gap between two that are.
    if call.spans is None or reaches_unheard_keys(call.spans):
        key, value = call.shielded()
    drawn = replace(call, seed=call.drawn_seed()) if call.dropout else call
    with without_autocast(call.device):
        out, lse = BlockAttention.apply(call.query, key, value, call.bias_tensor, drawn.without_tensors())  # pyright: ignore[reportGeneralTypeIssues]
    return counted_in(call.sinks, out, lse)
