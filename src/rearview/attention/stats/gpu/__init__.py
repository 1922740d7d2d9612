"""The pass on a GPU by two Triton kernels, one over queries and one over keys. Memory is O(T) and the map.

    >>> import torch
    >>> from rearview import causal
    >>> from rearview.attention.call import Call
    >>> x = torch.zeros(1, 2, 6, 8)
    >>> suits(Call.of(x, x, x, mask=causal()))    # no GPU: the portable pass computes it
    False

Triton is part of torch for CUDA on Linux. Elsewhere, and for what the kernels do not support (float64, masks without
ranges), the portable pass is used.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from rearview.attention.call import Call
from rearview.attention.stats.sums import Sums

# A tile holds whole heads, so the head dim is limited by registers.
LARGEST_DIM = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 128}
# A program takes a block of queries. With fewer queries most of the GPU idles, and the portable pass is as fast.
FEWEST_QUERIES = 16
# The first compute capability of NVIDIA GPUs with bfloat16 products.
OLDEST_GPU = (8, 0)


def suits(call: Call) -> bool:
    """Whether the kernels can compute this call, and are faster than the portable pass."""
    return (
        call.device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(call.device) >= OLDEST_GPU
        and call.query.shape[-1] <= LARGEST_DIM.get(call.query.dtype, 0)
        and call.frame.q_len >= FEWEST_QUERIES
        and call.mask.has_ranges
        and not torch.compiler.is_compiling()
        and _has_triton()
    )


def compute_sums(call: Call, bin_width: int, links: int) -> Sums:
    """The sums of a call that `suits`."""
    # Imports triton, which other machines do not have.
    from rearview.attention.stats.gpu.launch import compute_sums

    return compute_sums(call, bin_width, links)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
