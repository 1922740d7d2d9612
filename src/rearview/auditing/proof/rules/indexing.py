"""Reading by index. A constant index says what is heard; any other index may point anywhere along its axis.

>>> import torch
>>> from rearview.auditing.proof import prove
>>> prove(lambda x: x[:, torch.tensor([0, 0, 1])], torch.rand(1, 3, 4)).matrix().int().tolist()
[[1, 0, 0], [1, 0, 0], [0, 1, 0]]
>>> best = lambda x: x.gather(1, x.sum(-1, keepdim=True).long().clamp(0, 2))
>>> prove(best, torch.rand(1, 3, 1)).matrix().int().tolist()
[[1, 1, 1], [1, 1, 1], [1, 1, 1]]
"""

from typing import Any

import torch
from torch import Tensor

from rearview.auditing.proof.op_call import Heard, OpCall
from rearview.auditing.proof.rules.registry import rule
from rearview.auditing.proof.sets import align, everything, join, over, spread, spread_axes, unmark


@rule("embedding")
def embedding(call: OpCall) -> Tensor | None:
    weight, indices = call["weight"], call["indices"]
    ndim = call.out.dim()
    own = None if indices.sets is None else align(indices.sets, indices.ndim).unsqueeze(-2)
    if weight.sets is None:
        table = None
    elif indices.is_constant:
        rows = spread_axes(weight.sets, [0], weight.shape) if weight.sets.shape[0] > 1 else None
        table = align(weight.sets, 2)[0] if rows is None else rows[indices.value]
    else:
        table = over(align(weight.sets, 2), [0], keepdim=True)[0]
    return unmark(join(ndim, own, table))


@rule("index_select")
def index_select(call: OpCall) -> Tensor | None:
    item, index = call.args[0], call["index"]
    if item.ndim == 0:
        return join(0, item.sets, everything(index.sets))
    dim = call["dim"] % item.ndim
    sets = None if item.sets is None else align(item.sets, item.ndim)
    if index.is_constant:
        if sets is None or sets.shape[dim] == 1:
            return sets
        return sets.index_select(dim, index.value.reshape(-1))
    own = align(index.sets, 1).view(*[1] * dim, -1, *[1] * (item.ndim - dim - 1), index.sets.shape[-1])
    return unmark(join(item.ndim, None if sets is None else over(sets, [dim], keepdim=True), own))


@rule("gather", "take_along_dim")
def gather(call: OpCall) -> Tensor | None:
    item, index = call.args[0], call["index"] if call["index"] is not None else call["indices"]
    if item.ndim == 0 or index.ndim == 0:
        return join(call.out.dim(), everything(item.sets), everything(index.sets))
    dim = call["dim"] % item.ndim
    if index.is_constant:
        if item.sets is None:
            return None
        sets = spread(item.sets, item.shape)
        numbers = index.value.long().unsqueeze(-1).expand(*index.shape, sets.shape[-1])
        return sets.gather(dim, numbers)
    sets = None
    if item.sets is not None:
        sets = over(align(item.sets, item.ndim), [dim], keepdim=True)
        # The index may be smaller than the tensor along the other axes.
        for axis in range(item.ndim):
            if axis != dim and sets.shape[axis] > index.shape[axis]:
                sets = sets.narrow(axis, 0, index.shape[axis])
    return unmark(join(item.ndim, sets, index.sets))


@rule("take")
def take(call: OpCall) -> Tensor | None:
    item, index = call.args[0], call["index"]
    return unmark(join(call.out.dim(), everything(item.sets), index.sets))


def is_mask(index: Heard | None) -> bool:
    return index is not None and index.value.dtype in (torch.bool, torch.uint8)


@rule("index", "_unsafe_index")
def index(call: OpCall) -> Any:
    """x[i, :, j]. A boolean mask that has heard a source decides a shape."""
    item = call.args[0]
    indices: list[Heard | None] = list(call.args[1])
    if any(is_mask(i) and i is not None and not i.is_constant for i in indices):
        return call.state.escape(call)
    sets = None if item.sets is None else align(item.sets, item.ndim)
    used = used_dims(indices)
    numbers = [None if i is None else i.value for i in indices]
    if all(i is None or i.is_constant for i in indices):
        if sets is None:
            return None
        return torch.ops.aten.index.Tensor(spread_axes(sets, used, item.shape), numbers)
    # Any of the indices may point anywhere along its axis.
    zeros = [None if n is None else torch.zeros_like(n) for n in flattened_masks(numbers)]
    base = None
    if sets is not None:
        base = torch.ops.aten.index.Tensor(over(sets, used, keepdim=True), zeros)
    return unmark(join(call.out.dim(), base, placed(item, indices, used, zeros)))


def used_dims(indices: list[Heard | None]) -> list[int]:
    """The indexed axes; a mask indexes as many as it has."""
    used, dim = [], 0
    for i in indices:
        width = i.ndim if i is not None and is_mask(i) else 1
        if i is not None:
            used += range(dim, dim + width)
        dim += width
    return used


def flattened_masks(numbers: list[Tensor | None]) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for n in numbers:
        if n is not None and n.dtype in (torch.bool, torch.uint8):
            found += n.nonzero(as_tuple=True)
        else:
            found.append(n)
    return found


def placed(item: Heard, indices: list[Heard | None], used: list[int], zeros: list[Tensor | None]) -> Tensor | None:
    """The sets of the indices at their places in the output, found by indexing a row of numbers."""
    shape = torch.broadcast_shapes(*(z.shape for z in zeros if z is not None))
    joint = join(len(shape), *(i.sets for i in indices if i is not None and not is_mask(i)))
    if joint is None:
        return None
    flat = spread(joint, shape).reshape(-1, joint.shape[-1])
    count = flat.shape[0]
    row = torch.arange(count, device=flat.device).view(*[count if dim == used[0] else 1 for dim in range(item.ndim)])
    at = [None if z is None else z.expand(shape) for z in zeros]
    first = next(k for k, z in enumerate(at) if z is not None)
    at[first] = torch.arange(count, device=flat.device).view(shape)
    return flat[torch.ops.aten.index.Tensor(row, at)]


@rule("searchsorted", "bucketize")
def search(call: OpCall) -> Tensor | None:
    if call.name == "bucketize":
        values, boundaries = call.args[0], call["boundaries"]
        own = values.sets if isinstance(values, Heard) else None
        return join(call.out.dim(), own, everything(boundaries.sets))
    sequence, values = call.args[0], call.args[1]
    rows = None if sequence.sets is None else align(sequence.sets, sequence.ndim).any(dim=-2, keepdim=True)
    if sequence.ndim == 1:
        rows = everything(sequence.sets)
    sorter = None if call["sorter"] is None else everything(call["sorter"].sets)
    return join(call.out.dim(), rows, values.sets if isinstance(values, Heard) else None, sorter)
