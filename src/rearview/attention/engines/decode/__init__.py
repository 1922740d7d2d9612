"""A few queries over many keys on a GPU: the keys are read in splits, which a second kernel joins. Plain Triton.

    >>> from rearview.attention.engines import decode
    >>> decode.summary
    'our Triton kernels for a few queries: split keys'

Only the ranges that a row hears are read, so a window of 4,096 keys in a cache of 32,768 costs as much as a cache of
4,096. The query heads that share a key head are one tile. Lengths may be read on the device, so a CUDA graph serves a
cache that grows. Triton is part of torch for CUDA on Linux.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.native.function import is_plain

name = "decode"
summary = "our Triton kernels for a few queries: split keys"
where = "NVIDIA GPUs"

LARGEST_DIM = 256
# The first compute capability of NVIDIA GPUs with bfloat16 products.
OLDEST_GPU = (8, 0)
# Set for tests: Triton then runs kernels as Python on CPU tensors.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

__all__ = [
    "memory", "name", "prepared", "reason_not_taken", "reason_to_take", "refusals", "run", "summary", "where",
]  # fmt: skip


def refusals(call: Call) -> list[str]:
    if torch.compiler.is_compiling():
        return ["it cannot be part of a compiled graph"]
    if (obstacle := _obstacle(call.device)) is not None:
        return [obstacle]
    reasons = []
    if call.needs_grad:
        reasons.append("it has no backward pass")
    if not call.mask.has_ranges:
        reasons.append("the mask has no range form, and ranges are all that it reads of one")
    if call.query.dtype == torch.float64:
        reasons.append("it has no float64 kernel")
    if max(call.query.shape[-1], call.value.shape[-1]) > LARGEST_DIM:
        reasons.append(f"its head dims go up to {LARGEST_DIM}")
    if call.dropout:
        reasons.append("it has no dropout")
    tensors = (call.query, call.key, call.value, call.bias_tensor, call.sinks, call.lengths)
    if not is_plain(*tensors):
        reasons.append("it reads plain tensors only, outside of transforms and modes")
    return reasons


def _obstacle(device: torch.device) -> str | None:
    """Why it cannot run on a device; None where it can."""
    if INTERPRETED and device.type == "cpu":
        return None
    if device.type != "cuda" or torch.version.cuda is None:
        return f"it is a kernel for NVIDIA GPUs, and the tensors are on {device.type}"
    return _obstacle_on_gpu(device)


@cache
def _obstacle_on_gpu(device: torch.device) -> str | None:
    if find_spec("triton") is None:
        return "it needs Triton, which is not installed"
    if torch.cuda.get_device_capability(device) < OLDEST_GPU:
        return "it needs a GPU of compute capability 8.0 or newer"
    return None


def reason_to_take(call: Call) -> str | None:
    # On GPUs `gpu_choice` decides, from what was measured.
    return None


def reason_not_taken(call: Call, taken: str) -> str:
    return f"it is meant for a few queries; for {call.frame.q_len}, {taken} was measured to be faster"


def memory(call: Call) -> int:
    # One float32 sum of values per row and split, of which there are about as many as programs fit on the GPU.
    return 4 * (call.value.shape[-1] + 2) * call.batch * call.heads * call.frame.q_len * 32


def run(call: Call) -> tuple[Tensor, Tensor | None]:
    # Imports triton, which other machines do not have.
    from rearview.attention.engines.decode.launch import Decoding

    query, key, value = (_with_contiguous_rows(each) for each in (call.query, call.key, call.value))
    plain = query is call.query and key is call.key and value is call.value
    own = call if plain else _replaced(call, query, key, value)
    return Decoding(own)(query, key, value, call.sinks, call.lengths, call.bias_tensor, call.pages)


def prepared(call: Call) -> Callable[..., tuple[Tensor, Tensor | None]] | None:
    """`run` for calls like this one, with any number of keys if there is one query."""
    if call.bias_tensor is not None or call.pages is not None:
        return None
    if any(each.stride(-1) != 1 for each in (call.query, call.key, call.value)):
        return None
    from rearview.attention.engines.decode.launch import Decoding

    return Decoding(call)


def _with_contiguous_rows(tensor: Tensor) -> Tensor:
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


def _replaced(call: Call, query: Tensor, key: Tensor, value: Tensor) -> Call:
    from dataclasses import replace

    return replace(call, query=query, key=key, value=value)
