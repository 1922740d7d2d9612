"""Where PyTorch's attention was measured to be faster than the kernel: the table by which `engine="auto"` decides.

    >>> import torch
    >>> from rearview.attention.call import Call
    >>> one, cache = torch.zeros(1, 2, 1, 16), torch.zeros(1, 2, 99, 16)
    >>> sdpa_is_faster(Call.of(one, cache, cache), isa="avx2", has_tiles=False)
    True

A row is one kind of machine and one kind of call. Everything else that was measured is faster with the kernel, at any
length (`python -m bench native` and `python -m bench scaling`; bench/results has the figures of each machine).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from rearview.attention.call import Call

# One query of a head with fewer float32 numbers than this leaves most of a vector register empty.
NARROW_DIM = 32
# From these sizes on the kernel is the faster one for a step in bfloat16 on a processor with tiles, because it reads a
# key once for all queries of its head.
WIDE_DIM, LARGE_GROUP = 128, 4

VECTORS = ("avx2", "avx512", "avx512_bf16")
TILES = ("amx",)


@dataclass(frozen=True)
class Faster:
    """PyTorch is faster for these calls, on machines on which the kernel uses one of these instruction sets."""

    isas: tuple[str, ...]
    dtype: torch.dtype
    calls: Callable[[Call], bool]
    # Whether only processors with matrix tiles are meant, which PyTorch uses for bfloat16.
    has_tiles: bool = False


def _is_narrow_step(call: Call) -> bool:
    return call.frame.q_len == 1 and call.query.shape[-1] < NARROW_DIM and call.queries_per_key_head == 1


def _is_plain_step(call: Call) -> bool:
    shares_keys = call.queries_per_key_head >= LARGE_GROUP and call.query.shape[-1] >= WIDE_DIM
    return call.frame.q_len == 1 and not shares_keys


def _is_short_forward(length: int) -> Callable[[Call], bool]:
    def is_one(call: Call) -> bool:
        return call.frame.q_len > 1 and call.frame.q_len * call.frame.k_len <= length**2 and not call.needs_grad

    return is_one


TABLE = (
    # A kernel that does not use the tiles which the processor has: 0.4 to 1.9 times as fast forward, 0.5 to 1.7 with
    # backward.
    Faster(VECTORS, torch.bfloat16, lambda call: True, has_tiles=True),
    Faster((*VECTORS, *TILES), torch.float32, _is_narrow_step),
    # A Xeon with tiles, 16 threads. A step over 4096 keys: 0.45 to 0.84, and 1.30 where keys are shared.
    Faster(TILES, torch.bfloat16, _is_plain_step),
    # Forward: 0.53 at 64 x 64 and 0.72 at 128 x 128, 1.25 at 256 x 256; in float32 0.68 at 64 x 64, 1.22 at 128 x 128.
    Faster(TILES, torch.bfloat16, _is_short_forward(128)),
    Faster(TILES, torch.float32, _is_short_forward(64)),
)


def sdpa_is_faster(call: Call, *, isa: str | None, has_tiles: bool) -> bool:
    """Whether PyTorch's kernel is the faster one for a call that it can compute without a dense mask."""
    return any(
        isa in row.isas and call.query.dtype == row.dtype and (has_tiles or not row.has_tiles) and row.calls(call)
        for row in TABLE
    )
