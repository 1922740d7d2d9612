"""Convolution and pooling: what is heard is found by running the same op on the sets, one source at a time.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> conv = torch.nn.Conv1d(4, 4, kernel_size=3, padding=1)
>>> prove(lambda x: conv(x.transpose(1, 2)).transpose(1, 2), torch.rand(1, 4, 4)).matrix().int().tolist()
[[1, 1, 0, 0], [1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 1, 1]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, forget, join, spread, spread_axes, unmark


def planes(sets: Tensor) -> Tensor:
    """[n, channel, *space, c] -> [n * c, channel, *space], as floats."""
    moved = sets.movedim(-1, 1)
    return moved.reshape(-1, *moved.shape[2:]).float()


def unplanes(numbers: Tensor, columns: int) -> Tensor:
    found = (numbers > 0.5).unflatten(0, (-1, columns))
    return found.movedim(1, -1)


@rule("convolution", "_convolution")
def convolution(call: OpCall) -> Tensor | None:
    item, weight, bias = call.args[:3]
    groups = call["groups"]
    weights = everything(weight.sets)
    ndim = call.out.dim()
    if weights is not None and bias is None and (zero := item.equal_to(0)) is not None:
        weights = forget(align(weights, ndim), silent(call, zero, groups))
    rest = [weights, None if bias is None else everything(bias.sets)]
    heard = None
    if item.sets is not None:
        space = list(range(2, ndim))
        sets = spread_axes(unmark(align(item.sets, ndim)), space, item.shape)
        zero = weight.equal_to(0)
        args = (call["stride"], call["padding"], call["dilation"], call["transposed"], call["output_padding"])
        if zero is None:
            sets, kernel, groups = grouped(sets, item.shape[1], groups, weight.shape, item.value.device)
        else:
            sets = spread(sets, item.shape)
            kernel = (~zero).float()
        numbers = torch.ops.aten.convolution.default(planes(sets), kernel, None, *args, groups)
        heard = unplanes(numbers, sets.shape[-1])
        if heard.shape[1] != 1 and zero is None:
            heard = heard.repeat_interleave(call.out.shape[1] // heard.shape[1], dim=1)
    return join(ndim, heard, *(None if part is None else unmark(part) for part in rest))


def silent(call: OpCall, zero: Tensor, groups: int) -> Tensor:
    """Where all inputs are certainly 0, so that the output is, whatever the weights are: at the shape of the output."""
    kernel = torch.ones_like(call.args[1].value, dtype=torch.float32)
    args = (call["stride"], call["padding"], call["dilation"], call["transposed"], call["output_padding"], groups)
    return torch.ops.aten.convolution.default((~zero).float(), kernel, None, *args) < 0.5


def grouped(
    sets: Tensor, channels: int, groups: int, shape: torch.Size, device: torch.device
) -> tuple[Tensor, Tensor, int]:
    """The sets with one channel per group, and a kernel of ones."""
    if sets.shape[1] == 1 or groups == 1:
        sets = sets.any(dim=1, keepdim=True)
        groups = 1
    else:
        sets = sets.unflatten(1, (groups, channels // groups)).any(dim=2)
    return sets, torch.ones(groups, 1, *shape[2:], device=device), groups


@rule(
    *("max_pool1d_with_indices", "max_pool2d_with_indices", "max_pool3d_with_indices", "avg_pool1d", "avg_pool2d"),
    *("avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool1d", "upsample_linear1d"),
    *("upsample_bilinear2d", "max_pool1d", "max_pool2d"),
)
def pooled(call: OpCall) -> Any:
    """Run the op on the sets as numbers: with positive factors, a sum is positive exactly where something is heard."""
    item = call.args[0]
    count = 1 if isinstance(call.out, Tensor) else len(call.out)
    if item.sets is None:
        return [None] * count
    space = 1 if "1d" in call.name else 2 if "2d" in call.name else 3
    sets = unmark(align(item.sets, item.ndim))
    sets = spread_axes(sets, range(item.ndim - space, item.ndim), item.shape)
    columns = sets.shape[-1]
    moved = sets.movedim(-1, 0)
    # [c * rest, 1 channel, *space]; float64 counts thousands of neighbors exactly. Interpolation rounds its factors, so
    # in another precision other neighbors have the factor 0.
    kind = torch.promote_types(item.value.dtype, torch.float32) if "upsample" in call.name else torch.float64
    flat = moved.reshape(-1, 1, *moved.shape[-space:]).to(kind)
    args, kwargs = [flat, *call.args[1:]], dict(call.kwargs)
    if call["divisor_override"] is not None:
        # It may be negative, and which elements are heard does not depend on it.
        formals = [formal.name for formal in call.func._schema.arguments]
        args, kwargs = args[: formals.index("divisor_override")], {}
    numbers = call.func(*args, **kwargs)
    numbers = numbers if isinstance(numbers, Tensor) else numbers[0]
    found = (numbers > 0).reshape(columns, *moved.shape[1:-space], *numbers.shape[-space:]).movedim(0, -1)
    return [found] * count
