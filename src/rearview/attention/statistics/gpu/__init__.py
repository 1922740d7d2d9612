"""The pass on a GPU, in two Triton kernels: one looks at each query, then one at each key. Memory is O(T) and the map.

    >>> import torch
    >>> from rearview import causal
    >>> from rearview.attention.request import Request
    >>> x = torch.zeros(1, 2, 6, 8)
    >>> suits(Request.of(x, x, x, mask=causal()))    # no GPU: the strips do it
    False

Triton comes with torch for CUDA on Linux. Elsewhere, and for what the kernels do not do (float64, masks that have no
ranges), the strips remain.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from rearview.attention.request import Request
from rearview.attention.statistics.sums import Sums

# A tile holds whole heads. Beyond these, registers run out.
LARGEST_DIM = {torch.float16: 256, torch.bfloat16: 256, torch.float32: 128}
# A program takes a block of queries. With so few of them, most of the GPU would wait, and the strips are as fast.
FEWEST_QUERIES = 16
# Of NVIDIA's GPUs, those that multiply bfloat16.
OLDEST_GPU = (8, 0)


def suits(request: Request) -> bool:
    """Can, and should, the kernels do this?"""
    return (
        request.device.type == "cuda"
        and torch.version.cuda is not None
        and torch.cuda.get_device_capability(request.device) >= OLDEST_GPU
        and request.query.shape[-1] <= LARGEST_DIM.get(request.query.dtype, 0)
        and request.frame.q_len >= FEWEST_QUERIES
        and request.mask.has_ranges
        and not torch.compiler.is_compiling()
        and _has_triton()
    )


def sums_on_gpu(request: Request, sinks: Tensor | None, bin_width: int) -> Sums:
    """The sums of a request that `suits`."""
    from rearview.attention.statistics.gpu.launch import sums_by_kernels

    return sums_by_kernels(request, sinks, bin_width)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
