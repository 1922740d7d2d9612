"""Views. Any view is right without a rule, as its sets are read from the storage; with a rule they stay small.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: x.transpose(1, 2).reshape(1, 3, 4), torch.rand(1, 4, 3)).matrix().int().tolist()
[[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]]
"""

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, regroup


@rule("view", "view_as", "_unsafe_view", "reshape", "_reshape_alias", "view_copy")
def view(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    if call.func._overloadname == "dtype":
        return view_dtype(call)
    return regroup(item.sets, item.shape, call.out.shape)


def view_dtype(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.value.element_size() == call.out.element_size():
        return item.sets
    # Several elements become one or one becomes several, along the last axis.
    sets = align(item.sets, item.ndim)
    return sets.any(dim=-2, keepdim=True) if item.ndim else sets


@rule("permute", "permute_copy")
def permute(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    order = [dim % item.ndim for dim in call["dims"]]
    return align(item.sets, item.ndim).permute(*order, item.ndim)


@rule("transpose", "transpose_copy", "swapaxes")
def transpose(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None or item.ndim == 0:
        return item.sets
    return align(item.sets, item.ndim).transpose(call["dim0"] % item.ndim, call["dim1"] % item.ndim)


@rule("t", "t_copy")
def t(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return item.sets if item.sets is None or item.ndim < 2 else align(item.sets, 2).transpose(0, 1)


@rule("expand", "expand_copy")
def expand(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return None if item.sets is None else align(item.sets, call.out.dim())


@rule("unsqueeze", "unsqueeze_copy")
def unsqueeze(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return None if item.sets is None else align(item.sets, item.ndim).unsqueeze(call["dim"] % (item.ndim + 1))


@rule("squeeze", "squeeze_copy")
def squeeze(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return None if item.sets is None else regroup(item.sets, item.shape, call.out.shape)


@rule("slice", "slice_copy")
def slice_(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, item.ndim)
    dim = (call["dim"] or 0) % item.ndim
    if sets.shape[dim] == 1 and item.shape[dim] != 1:
        return sets if call.out.shape[dim] else sets.narrow(dim, 0, 0)
    return torch.ops.aten.slice.Tensor(sets, dim, call["start"], call["end"], call["step"])


@rule("select", "select_copy")
def select(call: OpCall) -> Tensor | None:
    item = call.args[0]
    if item.sets is None:
        return None
    sets = align(item.sets, item.ndim)
    dim = call["dim"] % item.ndim
    return sets.select(dim, 0 if sets.shape[dim] == 1 else call["index"] % item.shape[dim])


@rule("split", "split_with_sizes", "chunk", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "tensor_split")
def split(call: OpCall) -> list[Tensor | None]:
    item = call.args[0]
    if item.sets is None:
        return [None] * len(call.out)
    sets = align(item.sets, item.ndim)
    dim = (call["dim"] or 0) % item.ndim
    if sets.shape[dim] == 1 and item.shape[dim] != 1:
        return [sets if out.shape[dim] else sets.narrow(dim, 0, 0) for out in call.out]
    return list(sets.split([out.shape[dim] for out in call.out], dim=dim))


@rule("unbind", "unbind_copy")
def unbind(call: OpCall) -> list[Tensor | None]:
    item = call.args[0]
    if item.sets is None:
        return [None] * len(call.out)
    sets = align(item.sets, item.ndim)
    dim = (call["dim"] or 0) % item.ndim
    return [sets.select(dim, 0 if sets.shape[dim] == 1 else i) for i in range(len(call.out))]


@rule("detach", "alias", "lift", "contiguous", "detach_copy", "alias_copy", "_conj", "_neg_view", "lift_fresh")
def same(call: OpCall) -> Tensor | None:
    return call.args[0].sets


@rule("view_as_complex")
def view_as_complex(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return None if item.sets is None else align(item.sets, item.ndim).any(dim=-2)


@rule("view_as_real")
def view_as_real(call: OpCall) -> Tensor | None:
    item = call.args[0]
    return None if item.sets is None else align(item.sets, item.ndim).unsqueeze(-2)
