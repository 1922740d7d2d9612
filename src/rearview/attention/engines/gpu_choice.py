"""Which engine is the fastest on a GPU: one table of what was measured, which `engine="auto"` follows.

>>> order_for("decode", "forward", capability=(8, 0))
('decode', 'sdpa', 'flex')

Measured with `python -m bench gpu` on an H200; on other GPUs, PyTorch's own kernels are taken for what they express.
Engines that refuse a call, or are not there, are passed over.
"""

from __future__ import annotations

import math
from functools import cache

import torch

from rearview.attention.call import Call

# Up to this number of query rows per key head (queries x the heads that share a key head) the keys are the work.
FEW_ROWS = 256

# By head dim: from this number of queries on, `hopper` was faster than cuDNN for causal attention; for the narrow heads
# without gradients only.
LONG = {64: 8192, 128: 2048}

HOPPER = 9

# (kind of call, direction) -> engines, the fastest first. Any capability that has no table of its own has that of 0.
#   decode: few queries, no gradients     composed: a mask that PyTorch's kernels have no argument for
#   plain: no mask, or causal from position 0     long, long narrow: the same from `LONG` queries on, dims 128 and 64
FASTEST: dict[int, dict[tuple[str, str], tuple[str, ...]]] = {
    HOPPER: {
        ("decode", "forward"): ("decode", "sdpa", "hopper", "flex"),
        ("plain", "forward"): ("sdpa", "hopper", "flex"),
        ("plain", "backward"): ("sdpa", "hopper", "flex"),
        ("long", "forward"): ("hopper", "sdpa", "flex"),
        ("long", "backward"): ("hopper", "sdpa", "flex"),
        ("long narrow", "forward"): ("hopper", "sdpa", "flex"),
        ("long narrow", "backward"): ("sdpa", "hopper", "flex"),
        ("composed", "forward"): ("hopper", "flex", "decode"),
        ("composed", "backward"): ("hopper", "flex"),
    },
    0: {
        ("decode", "forward"): ("decode", "sdpa", "flex"),
        ("plain", "forward"): ("sdpa", "flex"),
        ("plain", "backward"): ("sdpa", "flex"),
        ("long", "forward"): ("sdpa", "flex"),
        ("long", "backward"): ("sdpa", "flex"),
        ("long narrow", "forward"): ("sdpa", "flex"),
        ("long narrow", "backward"): ("sdpa", "flex"),
        ("composed", "forward"): ("flex", "decode"),
        ("composed", "backward"): ("flex",),
    },
}

REASONS = {
    "decode": "for a few queries it reads the keys that are heard, on the whole GPU",
    "hopper": "our kernels on ranges were measured to be the fastest on this GPU",
    "flex": "on a GPU a compiled block-sparse kernel computes the visible tiles only",
    "sdpa": "the fused kernel expresses this mask without a dense tensor",
}


def order_for(kind: str, direction: str, *, capability: tuple[int, int]) -> tuple[str, ...]:
    """The names of engines in the order in which a GPU of this compute capability should try them."""
    return FASTEST.get(capability[0], FASTEST[0])[kind, direction]


def fastest_first(call: Call) -> tuple[str, ...]:
    """The names of engines for this call, which is on a GPU, in the order in which they should be tried."""
    direction = "backward" if call.needs_grad else "forward"
    return order_for(_kind(call), direction, capability=_capability(call.device))


def _kind(call: Call) -> str:
    # Lengths on the device can be read by the kernel for decoding alone, and so can pages.
    if call.lengths is not None or call.pages is not None or call.batch_invariant:
        return "decode" if not call.needs_grad else "composed"
    kind = "composed" if call.needs_dense_mask else _length(call)
    few = not call.needs_grad and call.frame.q_len * call.queries_per_key_head <= FEW_ROWS
    # As many keys as queries, without a mask: the kernel for long sequences needs no compilation.
    return "decode" if few and not (kind == "plain" and call.frame.q_len == call.frame.k_len) else kind


def _length(call: Call) -> str:
    dim = call.query.shape[-1]
    if call.value.shape[-1] != dim or call.frame.q_len < LONG.get(dim, math.inf):
        return "plain"
    return "long" if dim > 64 else "long narrow"


def _capability(device: torch.device) -> tuple[int, int]:
    # The compiler warns of functions with a cache.
    return _read_capability(device) if torch.compiler.is_compiling() else _known_capability(device)


def _read_capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device) if torch.version.cuda is not None else (0, 0)


_known_capability = cache(_read_capability)
