"""Rearview's own CPU kernel: one operator that is told its mask in words. It is proven by its definition.

>>> import torch
>>> from rearview import attend, causal, window
>>> from rearview.audit.proof import prove
>>> prove(lambda x: attend(x, x, x, mask=causal() & window(2)), torch.randn(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 1, 0], [0, 1, 1]]
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rearview.attention.bias import Alibi
from rearview.attention.engines import reference
from rearview.attention.engines.native.words import mask_of
from rearview.attention.request import Request
from rearview.masks import Frame

ASSUMED = "the engine `native` computes what the definition says (its conformance tests hold that)"


def is_own_kernel(func: Any) -> bool:
    return str(func) == "rearview.attention.default"


def own_kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    slopes: Tensor | None,
    seed: Tensor | None,
    words: str,
    numbers: list[int],
    data: list[Tensor],
    q_start: int,
    scale: float,
    softcap: float,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    """Scores, mask, softmax, values: dense, op by op, with the mask's own data among what is followed."""
    frame = Frame(query.shape[2], key.shape[2], q_start)
    mask = mask_of(words, numbers, data)
    both = bias if slopes is None else Alibi(slopes)
    rest = (scale, softcap or None, dropout, None, True, mask._simplify(frame))
    return reference.run(Request(query, key, value, mask, frame, both, *rest))
