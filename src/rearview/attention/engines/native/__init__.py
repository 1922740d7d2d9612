"""The CPU kernel of rearview: C++ on ranges, forward and backward, called through a plain C interface.

    >>> import torch
    >>> from rearview import attend, causal, window
    >>> x = torch.randn(1, 2, 6, 8)
    >>> if library.MISSING is None:
    ...     came = attend(x, x, x, mask=causal() & window(3), engine="native")
    ...     assert torch.allclose(came, attend(x, x, x, mask=causal() & window(3), engine="reference"), atol=1e-6)

`isas()` are the instruction sets at hand, `isa()` is the one in use, `force_isa(name)` chooses. The source is in
native/ at the top of the repository; how it is built is in docs/native.md.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rearview.attention.engines.native import call, library, op
from rearview.attention.engines.native.function import NativeAttention, PlainAttention, is_plain
from rearview.attention.engines.native.library import force_isa, isa, isas
from rearview.attention.engines.native.words import has_words
from rearview.attention.engines.native.work import Work
from rearview.attention.request import Request
from rearview.masks.step import heard_by_one

name = "native"
summary = "our C++ kernel on ranges, for CPUs"

LARGEST_DIM = 256

__all__ = ["force_isa", "isa", "isas", "name", "refusals", "run", "summary"]


def refusals(request: Request) -> list[str]:
    if library.MISSING is not None:
        return [library.MISSING]
    if library.WRONG_ENVIRONMENT:
        library.check_environment()
    reasons = []
    if request.device.type != "cpu":
        reasons.append(f"it is a CPU kernel, and the tensors are on {request.device.type}")
    if not request.mask.has_ranges:
        reasons.append("the mask has no range form, and ranges are all that it reads of one")
    if max(request.query.shape[-1], request.value.shape[-1]) > LARGEST_DIM:
        reasons.append(f"its head dims go up to {LARGEST_DIM}")
    if isinstance(request.bias, Tensor) and request.bias.dtype not in call.DTYPES:
        reasons.append(f"it has no bias of {request.bias.dtype}")
    if torch.compiler.is_compiling():
        if not has_words(request.mask):
            reasons.append("the mask cannot be carried by a compiled graph")
        if request.dropout and request.generator is not None:
            reasons.append("a compiled graph cannot draw from a generator; torch.manual_seed works")
    return reasons


def run(request: Request) -> tuple[Tensor, Tensor]:
    bias = request.bias if isinstance(request.bias, Tensor) else None
    given, work = (request.query, request.key, request.value, bias), Work.of(request)
    # torch.jit.trace would record the memory that is made for the answer, and not what fills it.
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return op.attention(*given, *work.for_operator())
    if not is_plain(*given):
        return NativeAttention.apply(*given, work)  # pyright: ignore[reportReturnType]
    if request.needs_grad:
        return PlainAttention.apply(*given, work)  # pyright: ignore[reportReturnType]
    if request.frame.q_len == 1 and bias is None and (heard := heard_by_one(request.simplified, request.frame)):
        return _step(request, work, *heard)
    return call.forward(*given, work.options(request.key_heads))


def _step(request: Request, work: Work, start: int, end: int) -> tuple[Tensor, Tensor]:
    key, value = request.key, request.value
    if (start, end) != (0, request.frame.k_len):
        key, value = key[:, :, start:end], value[:, :, start:end]
    return call.forward(request.query, key, value, None, work.options_of_step(start, end))
