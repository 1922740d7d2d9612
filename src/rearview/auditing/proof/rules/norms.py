"""Normalization: every element hears everything that its statistics are computed from.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> layer, batch = torch.nn.LayerNorm(4), torch.nn.BatchNorm1d(3)
>>> prove(layer, torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [0, 1, 0], [0, 0, 1]]
>>> over_time = torch.nn.InstanceNorm1d(4)
>>> prove(lambda x: over_time(x.transpose(1, 2)).transpose(1, 2), torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 1, 1], [1, 1, 1], [1, 1, 1]]
"""

from typing import Any

from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, join, over, unmark


def sets_of(item: Heard | None) -> Tensor | None:
    return None if item is None else unmark(item.sets)


@rule("native_layer_norm", "layer_norm", "_fused_rms_norm", "rms_norm")
def layer_norm(call: OpCall) -> Any:
    item = call["input"]
    dims = list(range(item.ndim - len(call["normalized_shape"]), item.ndim))
    own = sets_of(item)
    own = None if own is None else over(align(own, item.ndim), dims, keepdim=True)
    out = join(item.ndim, own, sets_of(call["weight"]), sets_of(call["bias"]))
    return [out] if isinstance(call.out, Tensor) else [out] + [own] * (len(call.out) - 1)


@rule("native_layer_norm_backward", "_fused_rms_norm_backward")
def layer_norm_backward(call: OpCall) -> Any:
    """The gradient of the input hears its own row; those of the weight and the bias hear all rows."""
    item = call["input"]
    dims = list(range(item.ndim - len(call["normalized_shape"]), item.ndim))
    rows = [call["grad_out"], item, call["mean"], call["rstd"]]
    heard = [sets_of(row) for row in rows if row is not None]
    own = join(item.ndim, *(None if s is None else over(align(s, item.ndim), dims, keepdim=True) for s in heard))
    first = join(item.ndim, own, sets_of(call["weight"]))
    whole = call.state.all_of(call)
    outs = [call.out] if isinstance(call.out, Tensor) else call.out
    given = [n for n, out in enumerate(outs) if isinstance(out, Tensor)]
    return [first if n == 0 else sets for n, sets in zip(given, whole, strict=True)]


@rule("native_group_norm", "group_norm")
def group_norm(call: OpCall) -> Any:
    item = call["input"]
    groups = call["group"] if call["group"] is not None else call["num_groups"]
    own = sets_of(item)
    rows = None
    if own is not None:
        own = align(own, item.ndim)
        own = over(own, list(range(2, item.ndim)), keepdim=True)
        size = item.shape[1] // groups
        if own.shape[1] > 1:
            # [n, groups, 1.., c], then the same for every channel of a group
            own = own.unflatten(1, (groups, size)).any(dim=2).repeat_interleave(size, dim=1)
        # [n, groups, c]: the other axes have size 1
        first = own[:, ::size] if own.shape[1] > 1 else own
        rows = first.reshape(*first.shape[:2], first.shape[-1])
    scale = [sets_of(call["weight"]), sets_of(call["bias"])]
    scale = [None if s is None else align(s, 1).reshape(1, -1, *[1] * (item.ndim - 2), s.shape[-1]) for s in scale]
    out = join(item.ndim, own, *scale)
    return [out] if isinstance(call.out, Tensor) else [out, rows, rows]


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training", "cudnn_batch_norm"),
    *("_batch_norm_with_update", "_batch_norm_no_update", "_native_batch_norm_legit_functional", "batch_norm"),
)
def batch_norm(call: OpCall) -> Any:
    """In train mode the statistics are over batch and time, and the running statistics hear the input."""
    item = call["input"]
    training = call["training"]
    if training is None:
        training = "no_" not in call.name
    own = sets_of(item)
    state = [sets_of(call["running_mean"]), sets_of(call["running_var"])]
    scale = [sets_of(call["weight"]), sets_of(call["bias"])]
    mean = None
    if own is not None:
        own = align(own, item.ndim)
        if training:
            # Over all axes but the channels.
            own = over(own, [dim for dim in range(item.ndim) if dim != 1], keepdim=True)
            mean = own.flatten(0, -2) if own.shape[1] > 1 else own.reshape(1, -1)
    per_channel = [None if s is None else align(s, 1) for s in [*scale, *([] if training else state)]]
    shaped = [None if s is None else s.reshape(1, -1, *[1] * (item.ndim - 2), s.shape[-1]) for s in per_channel]
    out = join(item.ndim, own, *shaped)
    if training and mean is not None:
        for running in (call["running_mean"], call["running_var"]):
            # Where the schema says that they are written, the interpreter writes them, and these are copies.
            if running is not None and call.state.memory.known(running.value):
                call.state.write(running.value, join(1, sets_of(running), mean))
    if isinstance(call.out, Tensor):
        return [out]
    rest = []
    for other in call.out[1:]:
        rest.append(mean if mean is None or other.dim() == 1 else everything(mean).view(*[1] * other.dim(), -1))
    return [out, *rest]
