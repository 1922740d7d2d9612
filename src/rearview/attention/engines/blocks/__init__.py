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

import torch
from torch import Tensor

from rearview.attention.engines.blocks.passes import BlockAttention
from rearview.attention.engines.blocks.schedule import reaches_unheard_keys
from rearview.attention.engines.blocks.work import KEYS_PER_TILE, LONG_ROW_STRIP, Work
from rearview.attention.request import Request

name = "blocks"
summary = "plain PyTorch, cut to the visible ranges"

__all__ = ["KEYS_PER_TILE", "LONG_ROW_STRIP", "name", "refusals", "run", "summary"]


def refusals(request: Request) -> list[str]:
    return []


def run(request: Request) -> tuple[Tensor, Tensor]:
    # The schedule is Python that reads the mask's values: a compiled graph breaks here and goes on behind it.
    # Asked for only then, because it imports the compiler.
    if torch.compiler.is_compiling():
        return torch.compiler.disable(_run)(request)  # pyright: ignore[reportReturnType, reportArgumentType]
    return _run(request)


def _run(request: Request) -> tuple[Tensor, Tensor]:
    bias = request.bias if isinstance(request.bias, Tensor) else None
    key, value = request.key, request.value
    # Keys that nobody hears are not read, except in a short gap between two that are.
    if request.spans is None or reaches_unheard_keys(request.spans):
        key, value = request.shielded()
    with torch.autocast(request.device.type, enabled=False):
        return BlockAttention.apply(request.query, key, value, bias, Work.of(request))
