"""Kernels of rearview for Hopper GPUs, on ranges: forward and backward, written in Gluon, compiled by Triton.

>>> import torch
>>> from rearview import plan
>>> x = torch.zeros(1, 1, 4, 8)
>>> plan(x, x, x).not_taken["hopper"]
'cannot: its kernels are for NVIDIA Hopper GPUs (H100, H200), and the tensors are on cpu'

How the kernels work is in docs/gpu.md and in DESIGN.md.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from rearview.attention.call import Call
from rearview.attention.engines.hopper import kernel, op
from rearview.attention.engines.hopper.function import HopperAttention, apply_plainly
from rearview.attention.engines.hopper.schedule import BITS_PER_WORD, is_read_as_bits
from rearview.attention.engines.hopper.tiling import LARGEST_DIM, padded_dim
from rearview.attention.engines.native.function import is_plain
from rearview.drawing.cells import in_bytes
from rearview.masks.encoding import can_encode

name = "hopper"
summary = "our Gluon kernels on ranges"
where = "Hopper GPUs (sm_90)"

HALVES = (torch.float16, torch.bfloat16)
# One bit per pair, for a mask that is not one or two ranges per row.
MOST_BITS = 4 << 33

# (query, key, value, sinks) -> (out, lse)
Prepared = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor | None]]

__all__ = ["memory", "name", "prepared", "reason_not_taken", "reason_to_take", "refusals", "run", "summary", "where"]


def refusals(call: Call) -> list[str]:
    if (obstacle := _obstacle(call.device)) is not None:
        return [obstacle]
    reasons = []
    if call.pages is not None:
        reasons.append("it does not read pages")
    if call.query.dtype not in HALVES:
        reasons.append(f"its kernels are for bfloat16 and float16, and the tensors are {_named(call.query.dtype)}")
    if max(call.query.shape[-1], call.value.shape[-1]) > LARGEST_DIM:
        reasons.append(f"its head dims go up to {LARGEST_DIM}")
    if isinstance(call.bias, Tensor) and call.bias.requires_grad and call.needs_grad:
        reasons.append("it has no gradient of a bias")
    if call.has_tangents:
        reasons.append("it has no forward-mode derivatives")
    if call.batch_invariant and call.dropout:
        reasons.append("what its dropout drops depends on the place in the batch")
    if (bits := _pairs_in_bits(call)) > MOST_BITS:
        reasons.append(f"one bit per pair of this mask would take {in_bytes(bits // 8)}")
    if torch.compiler.is_compiling():
        if not can_encode(call.mask):
            reasons.append("the mask cannot be carried by a compiled graph")
        if call.dropout and call.generator is not None:
            reasons.append("a compiled graph cannot draw from a generator; torch.manual_seed works")
    elif not is_plain(call.query, call.key, call.value, call.bias_tensor, call.sinks):
        reasons.append("it computes plain tensors only, outside of the transforms of torch.func")
    return reasons


def reason_to_take(call: Call) -> str | None:
    # On GPUs `gpu_choice` decides, from what was measured.
    return None


def reason_not_taken(call: Call, taken: str) -> str:
    return f"for this call it was not measured to be faster than {taken}"


def memory(call: Call) -> int:
    """The log-sum-exp; for the backward pass two numbers per row and the sums of d_query; bits, where it reads any."""
    rows = call.batch * call.heads * call.frame.q_len
    per_row = 3 + padded_dim(call.query.shape[-1]) if call.needs_grad else 1
    return rows * 4 * per_row + _pairs_in_bits(call) // 8


def prepared(call: Call) -> Prepared | None:
    """A function of the tensors alone for calls like this one: same shapes, strides, dtypes, options and mask."""
    if call.dropout or call.bias_tensor is not None or call.frame.q_len == 1 or not call.mask.has_ranges:
        return None
    kept, known = call.without_tensors(), kernel.Repetitions()

    def run_again(query: Tensor, key: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor | None]:
        tensors = (query, key, value, None, sinks)
        if kept_needs_grad:
            return apply_plainly(*tensors, kept, known)  # pyright: ignore[reportReturnType]
        return kernel.forward(tensors, kept, known=known)

    kept_needs_grad = call.needs_grad
    return run_again


def run(call: Call) -> tuple[Tensor, Tensor]:
    tensors = (call.query, call.key, call.value, call.bias_tensor, call.sinks)
    if torch.compiler.is_compiling():
        return op.attention(*tensors, *op.options_of(call, call.drawn_seed()))
    if call.dropout:
        call = replace(call, seed=call.drawn_seed())
    if call.needs_grad:
        return HopperAttention.apply(*tensors, call.without_tensors(), None)  # pyright: ignore[reportReturnType]
    return kernel.forward(tensors, call)


def _pairs_in_bits(call: Call) -> int:
    """The pairs of a mask that is read as bits; 0 where it is read as ranges."""
    if torch.compiler.is_compiling() or call.placed.packing_in(call.frame) is not None:
        return 0
    spans = call.spans
    if spans is not None and not is_read_as_bits(spans, call):
        return 0
    words = -(-call.frame.k_len // BITS_PER_WORD)
    return (call.mask.batch or 1) * (call.mask.heads or 1) * call.frame.q_len * words * BITS_PER_WORD


def _obstacle(device: torch.device) -> str | None:
    """Why nothing can be computed on this device; None where it can."""
    # Dynamo warns of caches, and cannot look for modules; what compiles a graph for a GPU is Triton.
    return _obstacle_of_gpu(device) if torch.compiler.is_compiling() else _known_obstacle(device)


@cache
def _known_obstacle(device: torch.device) -> str | None:
    if (obstacle := _obstacle_of_gpu(device)) is not None:
        return obstacle
    if importlib.util.find_spec("triton") is None:
        return "it needs Triton, which comes with PyTorch for CUDA: pip install triton"
    if importlib.util.find_spec("triton.experimental.gluon") is None:
        return "it needs Triton 3.6 or newer, which has Gluon"
    return None


def _obstacle_of_gpu(device: torch.device) -> str | None:
    kernels = "its kernels are for NVIDIA Hopper GPUs (H100, H200)"
    if device.type != "cuda" or torch.version.cuda is None:
        return f"{kernels}, and the tensors are on {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    return None if major == 9 else f"{kernels}, and this one is sm_{major}{minor}"


def _named(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
