"""What a batch-invariant model computes around attention: linear layers and activation functions, row by row.

    >>> import torch
    >>> from rearview.attention.engines.native import library
    >>> x, weight = torch.randn(7, 12), torch.randn(5, 12)
    >>> if library.MISSING is None:
    ...     whole, alone = linear(x, weight, None), linear(x[3:4], weight, None)
    ...     assert torch.equal(whole[3:4], alone) and torch.allclose(whole, x @ weight.T, atol=1e-5)

The bits of a row depend on the row alone. PyTorch's products, and its functions of single numbers, have other last bits
in another shape or with another number of threads.
"""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from rearview.attention.engines.native import kernel, library
from rearview.errors import Unsupported

# rows, depth, outs; x; weight; bias; out.
LINEAR = struct.Struct("@3qPqPqPPq")
# function, count; x; out.
ACTIVATION = struct.Struct("@2qPP")
# In the order of the C interface.
FUNCTIONS = ("relu", "silu", "gelu", "gelu_tanh")


def check_rows(*tensors: Tensor) -> None:
    """Raise `Unsupported` where tensors cannot be computed here."""
    reasons = [] if library.MISSING is None else [library.MISSING]
    if any(each.device.type != "cpu" for each in tensors):
        reasons.append(f"it runs on CPUs only, and the tensors are on {tensors[0].device.type}")
    if any(each.dtype != torch.float32 for each in tensors):
        reasons.append(f"it computes float32 only, and the tensors are {tensors[0].dtype}".replace("torch.", ""))
    if torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        reasons.append("it has no gradients; use it within torch.no_grad()")
    if torch.compiler.is_compiling():
        reasons.append("it cannot be part of a compiled graph")
    if reasons:
        raise Unsupported("A batch-invariant layer", reasons)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`torch.nn.functional.linear` with bits that depend on the row of `x` alone."""
    check_rows(x, weight, *(() if bias is None else (bias,)))
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1]).contiguous()
    weight = weight if weight.stride(-1) == 1 else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = rows.new_empty(len(rows), len(weight))
    packed = LINEAR.pack(
        len(rows), rows.shape[1], len(weight), rows.data_ptr(), rows.stride(0), weight.data_ptr(), weight.stride(0),
        0 if bias is None else bias.data_ptr(), out.data_ptr(), len(weight),
    )  # fmt: skip
    kernel.run("rv_linear", packed, len(rows) * rows.shape[1] * len(weight))
    return out.view(*x.shape[:-1], len(weight))


def activation(x: Tensor, function: str) -> Tensor:
    """An activation function, one of `FUNCTIONS`, with bits that depend on the number alone.

    >>> import torch
    >>> if library.MISSING is None:
    ...     assert activation(torch.tensor([-1.0, 2.0]), "relu").tolist() == [0.0, 2.0]
    """
    check_rows(x)
    x = x.contiguous()
    out = torch.empty_like(x)
    packed = ACTIVATION.pack(FUNCTIONS.index(function), x.numel(), x.data_ptr(), out.data_ptr())
    # An exponential or two per number.
    kernel.run("rv_activation", packed, 16 * x.numel())
    return out
